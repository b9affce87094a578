"""Providers of real clusters: an API server alone, whole nodes without Docker, and kind."""
