"""Event log in memory: for tests, dry runs and throw-away servers."""
