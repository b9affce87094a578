"""PURE: the next steps of a job, from what was observed."""
