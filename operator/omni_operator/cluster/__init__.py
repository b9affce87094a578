"""The only door to the API server, and what is remembered of it."""
