"""Parser of child objects: JSON of the API server -> observed values. Later code reads no dictionaries.

Values are clamped to what the job's status accepts: KubeRay, or anyone who may write its statuses, can put negative
counts, texts of any length and years from 1 to 9999 there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from omni_operator.api.names import (
    ASKED_ANNOTATION,
    CHECKSUM_ANNOTATION,
    PODS_ANNOTATION,
    RENDERED_ANNOTATION,
    REWARD_GROUP,
    ROLLOUT_GROUP,
    SPEC_ANNOTATION,
    TRAINER_GROUP,
    is_scorer_group,
    rolling_names,
)
from omni_operator.cluster.field_managers import describe_author, find_author
from omni_operator.cluster.kinds import Body
from omni_operator.plan.digest import CHECKED, digest_checked
from omni_operator.plan.pods.containers import CONTAINER
from omni_operator.plan.pools import KUEUE_QUEUE
from omni_operator.plan.queues import ELASTIC_JOB
from omni_operator.status.observed import evidence
from omni_operator.status.observed.observation import (
    HEAD,
    Asked,
    ObservedPod,
    ObservedRayCluster,
    ObservedRayJob,
    PodGroup,
    PoolSize,
    RequestedPods,
    TerminatedContainer,
    WaitingContainer,
)
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp

NOT_READY = "ContainersNotReady"  # the kubelet's reason; a lost node's pods keep none or an earlier one
STARTING = frozenset({"ContainerCreating", "PodInitializing"})
NAME_LIMIT = 253
TEXT_LIMIT = 1024
URL_LIMIT = 1024
COUNT_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Owner:
    """Reference to an object's controller."""

    kind: str
    name: str
    uid: str


def owner_of(body: Body) -> Owner | None:
    """The controller of an object; None without one."""
    for owner in _items(body["metadata"].get("ownerReferences")):
        if owner.get("controller"):
            return Owner(str(owner.get("kind")), str(owner.get("name")), str(owner.get("uid")))
    return None


def parse_rayjob(body: Body) -> ObservedRayJob:
    """Parse a RayJob; its attempt is not known here."""
    meta = body["metadata"]
    spec = _map(body.get("spec"))
    status = _map(body.get("status"))
    created = _time(meta.get("creationTimestamp"))
    annotations = _map(meta.get("annotations"))
    return ObservedRayJob(
        name=meta["name"],
        uid=meta["uid"],
        attempt=0,
        created=created,
        deleting=bool(meta.get("deletionTimestamp")),
        suspended=bool(spec.get("suspend")),
        in_queue=bool(_map(meta.get("labels")).get(KUEUE_QUEUE)),
        digest=str(annotations.get(RENDERED_ANNOTATION, "")),
        made_of=str(annotations.get(SPEC_ANNOTATION, "")),
        altered=_alteration(body, annotations),
        pools=_pool_sizes(str(annotations.get(PODS_ANNOTATION, ""))[:TEXT_LIMIT]),
        asked=_asked(str(annotations.get(ASKED_ANNOTATION, ""))[:TEXT_LIMIT]),
        requested=tuple(_requested(spec)) if annotations.get(ELASTIC_JOB) == "true" else (),
        deployment=_text(status.get("jobDeploymentStatus")),
        job=_text(status.get("jobStatus")),
        reason=_text(status.get("reason")),
        message=_text(status.get("message")),
        cluster=_text(status.get("rayClusterName"), NAME_LIMIT),
        dashboard=_text(status.get("dashboardURL"), URL_LIMIT),
        # `startTime` is when KubeRay began to create the cluster; the job's own start is in `rayJobInfo`, if known.
        started=_not_before(created, _job_started(status)),
        ended=_not_before(created, parse_timestamp(status.get("endTime"))),
    )


def _alteration(body: Body, annotations: Mapping[str, Any]) -> str:
    """Message about changed fields of a RayJob that must not change, and who changed them; empty if unchanged."""
    if CHECKSUM_ANNOTATION in annotations and annotations[CHECKSUM_ANNOTATION] == digest_checked(body):
        return ""
    paths = [("f:spec", "f:entrypoint"), *(("f:metadata", "f:annotations", f"f:{name}") for name in CHECKED)]
    author = next(filter(None, (find_author(body, *path, fallback=False) for path in paths)), "")
    return (
        f"{describe_author(author)} changed the entrypoint or annotations of RayJob {body['metadata']['name']}, which "
        "the operator does not change back: delete the RayJob, and another attempt starts as the job says"
    )


@lru_cache(maxsize=256)  # thousands of jobs have few different sizes, and share them
def _pool_sizes(text: str) -> tuple[PoolSize, ...]:
    """The pods that an attempt was created with; none where the annotation is missing or says nothing of a trainer."""
    try:
        recorded = _map(json.loads(text))
    except (ValueError, RecursionError):
        return ()
    scorers = [group for group in recorded if is_scorer_group(group)]
    sizes = {group: recorded.get(group) for group in (TRAINER_GROUP, ROLLOUT_GROUP, REWARD_GROUP, *scorers)}
    if not isinstance(sizes[TRAINER_GROUP], Mapping):
        return ()
    return tuple(
        PoolSize(group, *(_count(size.get(part)) for part in ("pods", "accelerators", "least", "fewest", "most")))
        for group, size in sizes.items()
        if isinstance(size, Mapping)
    )


def _requested(spec: Mapping[str, Any]) -> Iterator[RequestedPods]:
    for index, group in enumerate(_items(_map(spec.get("rayClusterSpec")).get("workerGroupSpecs"))):
        yield RequestedPods(str(group.get("groupName")), index, _count(group.get("replicas")))


def _asked(text: str) -> Asked | None:
    at, _, rounds = text.partition(" ")
    asked_at = parse_timestamp(at)
    return Asked(asked_at, int(rounds) if rounds.isdecimal() and len(rounds) < 3 else 0) if asked_at else None


def _job_started(status: Mapping[str, Any]) -> datetime | None:
    if status.get("jobDeploymentStatus") not in ("Running", "Complete", "Failed"):
        return None
    info = _map(status.get("rayJobInfo"))
    return parse_timestamp(info.get("startTime")) or parse_timestamp(status.get("startTime"))


def parse_raycluster(body: Body) -> ObservedRayCluster:
    """Parse a RayCluster; its attempt is not known here.

    Its `state` is not used: it stays `ready` when the head pod is lost.
    """
    meta = body["metadata"]
    status = _map(body.get("status"))
    conditions = {str(item.get("type")): item for item in _items(status.get("conditions"))}
    head = conditions.get("HeadPodReady")
    failure = conditions.get("ReplicaFailure")
    ready = {"True": True, "False": False}.get(str(head.get("status"))) if head else None
    return ObservedRayCluster(
        name=meta["name"],
        uid=meta["uid"],
        attempt=0,
        created=_time(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
        head_ready=ready,
        head_reason=_text(head.get("reason"), NAME_LIMIT) if head else "",
        head_since=parse_timestamp(head.get("lastTransitionTime")) if head else None,
        provisioned=_map(conditions.get("RayClusterProvisioned")).get("status") == "True",
        desired_workers=_count(status.get("desiredWorkerReplicas")),
        ready_workers=_count(status.get("readyWorkerReplicas")),
        groups=tuple(_pod_groups(_map(body.get("spec")), _map(meta.get("annotations")))),
        failure=_text(failure.get("message")) if failure and failure.get("status") == "True" else "",
    )


def _pod_groups(spec: Mapping[str, Any], annotations: Mapping[str, Any]) -> Iterator[PodGroup]:
    for index, group in enumerate(_items(spec.get("workerGroupSpecs"))):
        if group.get("groupName") in (TRAINER_GROUP, ROLLOUT_GROUP, REWARD_GROUP):
            yield _pod_group(index, group, annotations)


def _pod_group(index: int, group: Mapping[str, Any], annotations: Mapping[str, Any]) -> PodGroup:
    name = str(group["groupName"])
    names = rolling_names(name)
    refused, _, refusal = str(annotations.get(names.refused) or "").partition(" ")
    since = parse_timestamp(annotations.get(names.replacing)) if annotations.get(names.before) else None
    template = _map(group.get("template"))
    metadata = _map(template.get("metadata"))
    named = _map(group.get("scaleStrategy")).get("workersToDelete")
    return PodGroup(
        name=name,
        index=index,
        replicas=_count(group.get("replicas")),
        least=_count(group.get("minReplicas")),
        most=_count(group.get("maxReplicas")),
        gated=_is_gated(_map(template.get("spec"))),
        template=_text(_map(metadata.get("labels")).get(names.template)),
        removed=tuple(map(str, named)) if isinstance(named, list) else (),
        replacing=since,
        refused=refused,
        refusal=_text(refusal),
    )


def parse_pod(body: Body) -> ObservedPod:
    """Parse a pod of a Ray cluster; its attempt is not known here."""
    meta = body["metadata"]
    spec = _map(body.get("spec"))
    status = _map(body.get("status"))
    labels = _map(meta.get("labels"))
    group = str(labels.get("ray.io/group") or "")
    conditions = {str(item.get("type")): item for item in _items(status.get("conditions"))}
    disruption = conditions.get("DisruptionTarget")
    scheduled = _map(conditions.get("PodScheduled"))
    initial, containers = (_items(status.get(f"{kind}Statuses")) for kind in ("initContainer", "container"))
    ray = _ray_container(containers)
    started = bool({"running", "terminated"} & {*_map(ray.get("state"))} or ray.get("lastState"))
    deciding = [ray] if started else [*initial, *containers]
    others = [_sidecar(item, item in initial) for item in (*initial, *containers) if started and item is not ray]
    disrupted = disruption is not None and disruption.get("status") == "True"
    unschedulable = ""
    if _is_gated(spec):
        unschedulable = "waits for quota of its Kueue queue"
    elif scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        unschedulable = _text(scheduled.get("message") or "Unschedulable")
    return ObservedPod(
        name=meta["name"],
        uid=meta["uid"],
        attempt=0,
        group=HEAD if labels.get("ray.io/node-type") == "head" else group,
        created=_time(meta.get("creationTimestamp")),
        phase=str(status.get("phase") or "Pending"),
        ready=is_ready(status),
        deleting=bool(meta.get("deletionTimestamp")),
        node=str(spec.get("nodeName") or ""),
        unreachable=_is_unreachable(spec, conditions),
        disrupted=_describe(disruption) if disrupted and disruption else "",
        unschedulable=unschedulable,
        address=_text(status.get("podIP")),
        template=_text(labels.get(rolling_names(group).template)),
        waiting=tuple(_waiting(deciding)),
        ended=tuple(replace(end, ray=item is ray) for item in deciding for end in _ended(item)),
        sidecars=evidence.shorten("; ".join(filter(None, others))),
    )


def _is_gated(pod_spec: Mapping[str, Any]) -> bool:
    """Whether a pod waits until Kueue has admitted it."""
    return any(gate.get("name") == ELASTIC_JOB for gate in _items(pod_spec.get("schedulingGates")))


def is_ready(status: Mapping[str, Any]) -> bool:
    """Whether a pod, by its status, is ready, or Ray's container is and another one is not."""
    ready = next((item for item in _items(status.get("conditions")) if item.get("type") == "Ready"), {})
    ray = _ray_container(_items(status.get("containerStatuses")))
    return ready.get("status") == "True" or (ready.get("reason") == NOT_READY and ray.get("ready") is True)


def _ray_container(containers: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The state of Ray's container. Webhooks add containers, also before it."""
    return next((item for item in containers if item.get("name") == CONTAINER), containers[0] if containers else {})


def _sidecar(item: Mapping[str, Any], initial: bool) -> str:
    """What is wrong with a container that is not Ray's; empty if nothing is. An init container may have ended."""
    for end in _ended(item):
        if end.exit_code or (not initial and "terminated" in _map(item.get("state"))):
            return f"container {end.container} ended with exit code {end.exit_code}: {end.message}".rstrip(": ")
    for wait in _waiting([item]):
        if wait.reason not in STARTING:
            return f"container {wait.container}: {wait.reason}: {wait.message}".rstrip(": ")
    return ""


def _is_unreachable(spec: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the pod's node does not answer: Kubernetes then sets `Ready`, and leaves what the kubelet said last."""
    ready, containers = (_map(conditions.get(name)).get("status") for name in ("Ready", "ContainersReady"))
    return (ready, containers) == ("False", "True") and not spec.get("readinessGates")


def _waiting(containers: Iterable[Mapping[str, Any]]) -> Iterable[WaitingContainer]:
    for item in containers:
        state = _map(_map(item.get("state")).get("waiting"))
        if reason := state.get("reason"):
            yield WaitingContainer(
                container=_text(item.get("name")),
                reason=_text(reason),
                message=_text(state.get("message")),
                restarts=_count(item.get("restartCount")),
            )


def _ended(item: Mapping[str, Any]) -> Iterable[TerminatedContainer]:
    now, last = (_map(_map(item.get(name)).get("terminated")) for name in ("state", "lastState"))
    if state := now or last:
        yield TerminatedContainer(
            container=_text(item.get("name")),
            reason=_text(state.get("reason")),
            exit_code=_integer(state.get("exitCode"), -COUNT_LIMIT),
            message=str(state.get("message") or "")[-2048:],
        )


def _describe(condition: Mapping[str, Any]) -> str:
    return _text(f"{condition.get('reason') or 'disrupted'}: {condition.get('message') or ''}".rstrip(": "))


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: Any, limit: int = TEXT_LIMIT) -> str:
    return evidence.shorten(str(value or ""), limit)


def _count(value: Any) -> int:
    return _integer(value, 0)


def _integer(value: Any, least: int) -> int:
    return min(max(value, least), COUNT_LIMIT) if type(value) is int else 0


def _time(value: Any) -> datetime:
    return parse_timestamp(value) or EARLIEST


def _not_before(least: datetime, at: datetime | None) -> datetime | None:
    """A time of KubeRay's clock, but not before the API server created the object."""
    return max(at, least) if at else None
