"""Python client of jobs on a cluster, for notebooks and the command `drl`."""

from .jobs import Client, Job, JobNotFound, UnusableKubeconfig

__all__ = ["Client", "Job", "JobNotFound", "UnusableKubeconfig"]
