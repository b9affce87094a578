"""PURE: what a cluster's administrator allows in the pods of jobs."""
