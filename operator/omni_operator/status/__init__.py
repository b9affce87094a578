"""PURE: what is seen of a job -> what to do next, and what its status says."""
