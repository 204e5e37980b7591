"""The API server of a cluster. Nothing here is imported unless it is used."""
