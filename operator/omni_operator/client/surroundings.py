"""What is around a job on a cluster: pods, Kueue's Workload and warning events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from omni_operator.api.names import ATTEMPT_LABEL, JOB_LABEL, Names
from omni_operator.api.status import Condition
from omni_operator.cluster.cache.object_parser import parse_pod
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.kinds import PODS, WORKLOADS, Kind
from omni_operator.plan.pools import KUEUE_QUEUE

from .explanation import QueueState, Surroundings
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
    queue = None
    # Kueue may have put a job without a queue label into the namespace's queue `default`.
    if (job.body["metadata"].get("labels") or {}).get(KUEUE_QUEUE) or job.status.state == "Queued":
        queue = find_queue_state(listed("Kueue's Workloads", WORKLOADS), name)
    return Surroundings(pods, queue, select_warnings(events, job.name, name), tuple(unread))


def select_warnings(bodies: Iterable[Mapping[str, Any]], job: str, attempt: str) -> tuple[Event, ...]:
    """The events about a job and the objects of its attempt, whose names begin with the RayJob's name."""
    return tuple(
        event
        for event in sort_events(bodies)
        if (event.kind, event.name) == ("DiffusionRLJob", job)
        or event.name == attempt
        or event.name.startswith(f"{attempt}-")
    )


def find_queue_state(workloads: Iterable[Mapping[str, Any]], rayjob: str) -> QueueState | None:
    """What Kueue says of a RayJob's Workload; None if it has none."""
    for body in workloads:
        if not any(owner.get("name") == rayjob for owner in body["metadata"].get("ownerReferences") or ()):
            continue
        conditions = {found.type: found for found in _conditions(body)}
        waits = next(
            (
                found
                for kind in ("QuotaReserved", "Admitted")
                if (found := conditions.get(kind)) and found.status == "False"
            ),
            None,
        )
        evicted = conditions.get("Evicted")
        if waits is not None and evicted is not None and evicted.status == "True":
            waits = evicted
        return QueueState(body["metadata"]["name"], str(body.get("spec", {}).get("queueName") or ""), waits)
    return None


def _conditions(body: Mapping[str, Any]) -> Iterable[Condition]:
    for found in (body.get("status") or {}).get("conditions") or ():
        try:
            yield Condition.model_validate(found)
        except ValidationError:
            continue
