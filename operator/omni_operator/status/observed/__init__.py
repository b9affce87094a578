"""PURE: what passes read of a job, its objects, its pods and the reports of its trainer."""
