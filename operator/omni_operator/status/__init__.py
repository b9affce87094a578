"""PURE: next steps and status of a job, from what was observed."""
