"""Event log in PostgreSQL: several nodes on one log. Needs the extra `postgres`."""
