"""PURE: what is observed of a job -> what to do next, and what its status says."""
