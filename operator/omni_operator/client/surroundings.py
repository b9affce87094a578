"""What is around a job on a cluster: pods and warning events."""

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.api.names import ATTEMPT_LABEL, JOB_LABEL, Names
from omni_operator.cluster.cache.object_parser import parse_pod
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.kinds import PODS, Kind

from .explanation import Surroundings
from .job_pods import select_pod_bodies
from .jobs import CORE_EVENTS, Client, Job
from .kubernetes_events import Event, sort_events


def read_surroundings(client: Client, job: Job) -> Surroundings:
    """What is around a job. Where the user lacks a right, the rest is read, and `unread` names it."""
    connection = client.connection
    namespace = client.namespace
    attempt = job.status.attempts
    unread: list[str] = []

    def listed(what: str, kind: Kind, **query: str) -> list[dict[str, Any]]:
        try:
            return connection.list(kind.path(namespace), **query)
        except ClusterError as error:
            unread.append(f"{what} ({error})")
            return []

    if not attempt or job.status.finished:
        return Surroundings()
    selector = f"{JOB_LABEL}={job.name},{ATTEMPT_LABEL}={attempt}"
    bodies = select_pod_bodies(listed("pods", PODS, labelSelector=selector), job.status.children.ray_cluster_uid)
    pods = tuple(map(parse_pod, bodies))
    name = Names(job.name).attempt(attempt)
    events = listed("events", CORE_EVENTS, fieldSelector="type=Warning")
    return Surroundings(pods, select_warnings(events, job.name, name), tuple(unread))


def select_warnings(bodies: Iterable[Mapping[str, Any]], job: str, attempt: str) -> tuple[Event, ...]:
    """The events about a job and the objects of its attempt, whose names begin with the RayJob's name."""
    return tuple(
        event
        for event in sort_events(bodies)
        if (event.kind, event.name) == ("DiffusionRLJob", job)
        or event.name == attempt
        or event.name.startswith(f"{attempt}-")
    )
