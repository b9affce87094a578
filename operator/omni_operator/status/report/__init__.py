"""PURE: status, conditions and events of a job, from its situation."""
