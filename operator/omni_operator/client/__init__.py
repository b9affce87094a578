"""Python client of jobs on a cluster, for notebooks and the command `drl`."""

from .connection import UnusableKubeconfig
from .jobs import Client, Job, JobExists, JobNotFound, Submitted

__all__ = ["Client", "Job", "JobExists", "JobNotFound", "Submitted", "UnusableKubeconfig"]
