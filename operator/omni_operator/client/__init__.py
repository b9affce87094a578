"""Python client of jobs on a cluster, for notebooks and the command `drl`."""

from .connection import UnusableKubeconfig
from .events import Event
from .jobs import Client, Job, JobDeleted, JobExists, JobNotFound, Submitted

__all__ = ["Client", "Event", "Job", "JobDeleted", "JobExists", "JobNotFound", "Submitted", "UnusableKubeconfig"]
