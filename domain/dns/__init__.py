"""The DNS protocol as values: names, records, zones, look-up, messages. No I/O."""
