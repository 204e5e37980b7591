"""Lists outside the program: fetched, kept on disk, built into a table."""
