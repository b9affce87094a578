"""PURE: pod templates and worker groups of a job's RayCluster."""
