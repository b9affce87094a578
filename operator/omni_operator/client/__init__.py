"""Python client of jobs on a cluster, for notebooks and the command `drl`."""

from omni_operator.cluster.errors import ClusterError, Forbidden

from .archive import FolderTaken
from .connection import UnusableKubeconfig
from .explanation import explain
from .fetched_results import CannotFetch, Fetched, fetch
from .job_pods import JobPod, find_dashboard
from .jobs import (
    Client,
    FieldNotServed,
    InvalidName,
    Job,
    JobDeleted,
    JobExists,
    JobFinished,
    JobNotFound,
    NotScalable,
    Submitted,
)
from .kubernetes_events import Event
from .pod_logs import LogLine, PodNotFound, find_pods, follow_logs, read_logs
from .port_forward import PortForwarder
from .surroundings import read_surroundings

__all__ = [
    "CannotFetch",
    "Client",
    "ClusterError",
    "Event",
    "Fetched",
    "FieldNotServed",
    "FolderTaken",
    "Forbidden",
    "InvalidName",
    "Job",
    "JobDeleted",
    "JobExists",
    "JobFinished",
    "JobNotFound",
    "JobPod",
    "NotScalable",
    "LogLine",
    "PodNotFound",
    "PortForwarder",
    "Submitted",
    "UnusableKubeconfig",
    "explain",
    "fetch",
    "find_dashboard",
    "find_pods",
    "follow_logs",
    "read_logs",
    "read_surroundings",
]
