"""Views derived from the log. Each can be dropped and rebuilt from events alone. No I/O."""
