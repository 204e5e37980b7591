"""The API over HTTP, /api/v1. Decision 0026 says how it is built."""
