"""What kudurru means: objects, events, decisions, DNS. No I/O, no clock, no randomness here."""
