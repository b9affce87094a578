"""Glue: kopf's watches, workers of jobs, HTTP, the process."""
