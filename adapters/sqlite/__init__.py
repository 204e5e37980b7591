"""Event log in one SQLite file: the default."""
