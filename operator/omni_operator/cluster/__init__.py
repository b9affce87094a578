"""Access to the API server: client, credentials, errors, and the cache of observed objects."""
