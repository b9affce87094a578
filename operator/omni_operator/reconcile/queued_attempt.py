"""An attempt that a Kueue queue has not admitted: why, and changes of its RayJob to another number of rollout pods.

Kueue updates the Workload of a suspended RayJob in place, which keeps its place in the queue, unless quota is reserved
for it: then Kueue deletes the Workload, with the reservation, and makes another one. So the Workload is read before.
"""

import copy
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from omni_operator.api.names import (
    ASKED_ANNOTATION,
    CHECKSUM_ANNOTATION,
    OVERRIDES_ANNOTATION,
    POD_LIMITS,
    PODS_ANNOTATION,
    ROLLOUT_GROUP,
    TRAINER_GROUP,
)
from omni_operator.cluster.cache.object_parser import parse_rayjob
from omni_operator.cluster.errors import KindAbsent, Refused, Unavailable
from omni_operator.cluster.kinds import RAYJOBS, WORKLOADS, Body
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan.digest import digest_checked
from omni_operator.plan.overrides import ROLLOUT_NODES
from omni_operator.reconcile.subject import Subject
from omni_operator.status.decisions.situation import AskForPods, Decision, GroupChange, ReserveQuota
from omni_operator.status.decisions.verdict import InProgress, Stage
from omni_operator.status.observed.observation import ObservedRayJob
from omni_operator.status.observed.timestamps import EARLIEST, format_timestamp

OWNER_LABEL = "kueue.x-k8s.io/job-uid"  # label of a Workload
REREAD = timedelta(minutes=1)  # pause before the reason of a waiting Workload is read again
REREAD_UNTRIED = timedelta(seconds=5)  # the same before Kueue has tried it
PREEMPTING = "Pending the preemption of"  # in Kueue's message while pods of others are ending


async def ask_for_pods(cluster: Cluster, namespace: str, step: AskForPods, now: datetime) -> Body | None:
    """Ask the queue for another number of rollout pods; return the RayJob afterwards, None if it has not changed.

    Nothing is changed unless Kueue has tried the Workload and found no room, nor while it waits for pods that it
    preempts for it, without Kueue, or where the RayJob is not the one that the step was decided for.

    Raises:
        Conflict: the queue has admitted the RayJob since it was read.
    """
    body = await cluster.read(RAYJOBS, namespace, step.rayjob.name)
    if body is None or not is_as_decided(body, step):
        return None
    if not await _waits_for_quota(cluster, namespace, step.rayjob.uid):
        return None
    return await cluster.patch(RAYJOBS, body, change(body, step, now))


async def reserve_quota(cluster: Cluster, namespace: str, step: ReserveQuota) -> Body | None:
    """Change the number of pods of a worker group of a RayJob; return the RayJob afterwards, None if it is unchanged.

    If the attempt waits, the number is changed only after Kueue has tried the Workload and found no room.

    Raises:
        Conflict: the RayJob, or its worker group, is not the one that the step was decided for.
    """
    rayjob = step.rayjob
    if rayjob.suspended and not await _waits_for_quota(cluster, namespace, rayjob.uid):
        return None
    limits = (step.new, step.new) if rayjob.suspended else POD_LIMITS
    request = step.request
    change = GroupChange(request.index, request.group, request.pods, step.new, limits=limits)
    return await cluster.scale_group(RAYJOBS, namespace, rayjob.name, rayjob.uid, change)


async def _waits_for_quota(cluster: Cluster, namespace: str, uid: str) -> bool:
    """Whether Kueue has tried the RayJob with this uid, and found no room."""
    try:
        return has_no_room(await cluster.list_objects(WORKLOADS, namespace, f"{OWNER_LABEL}={uid}"))
    except KindAbsent:
        return False


async def explain_queue(cluster: Cluster, job: Subject, rayjob: ObservedRayJob | None, decision: Decision) -> Decision:
    """The decision with Kueue's reason, read from time to time, or why it is not known, for an attempt that waits."""
    memory = job.memory
    situation = decision.situation
    if not isinstance(situation, InProgress) or situation.stage is not Stage.QUEUED:
        memory.queue_reread = EARLIEST
        return decision
    if rayjob is None or not rayjob.in_queue:
        return decision
    if memory.queue_reread <= job.now:
        memory.queue_reason = ""
        memory.queue_reread = job.now + REREAD
        try:
            workloads = await cluster.list_objects(WORKLOADS, job.key[0], f"{OWNER_LABEL}={rayjob.uid}")
            reason = find_queue_reason(workloads)
            memory.queue_reason = f"Kueue says {reason}" if reason else ""
            memory.queue_reread = job.now + (REREAD if reason else REREAD_UNTRIED)
        except (KindAbsent, Refused):
            pass  # the reason is not known
        except Unavailable as error:  # while Kueue is down, the webhook that converts its Workloads is too
            memory.queue_reason = f"Its Workload cannot be read: {error}"
    explained = replace(situation, problem=memory.queue_reason)
    wake = min(filter(None, (decision.wake, memory.queue_reread)))
    return replace(decision, situation=explained, wake=wake)


def find_queue_reason(workloads: Iterable[Body]) -> str:
    """Reason and message of the condition by which a Workload waits; empty without one. PURE."""
    for workload in _unfinished(workloads):
        conditions = _conditions(workload)
        for condition in (conditions.get("QuotaReserved") or {}, conditions.get("Admitted") or {}):
            if condition.get("status") == "False":
                return ": ".join(filter(None, (str(condition.get("reason")), str(condition.get("message") or ""))))
    return ""


def has_no_room(workloads: Iterable[Body]) -> bool:
    """Whether a queue has tried the only Workload of a RayJob, and waits for quota. PURE."""
    candidates = _unfinished(workloads)
    if len(candidates) != 1 or (candidates[0].get("spec") or {}).get("active") is False:
        return False
    tried = _conditions(candidates[0]).get("QuotaReserved") or {}
    pending = (tried.get("status"), tried.get("reason")) == ("False", "Pending")
    return pending and PREEMPTING not in str(tried.get("message"))


def _unfinished(workloads: Iterable[Body]) -> list[Body]:
    """Workloads without those that Kueue has replaced, because the number of pods grew."""
    return [workload for workload in workloads if _conditions(workload).get("Finished", {}).get("status") != "True"]


def _conditions(workload: Body) -> dict[str, dict[str, Any]]:
    """The conditions of a Workload, by type."""
    return {condition.get("type"): condition for condition in (workload.get("status") or {}).get("conditions") or ()}


def is_as_decided(body: Body, step: AskForPods) -> bool:
    """Whether a RayJob is the one of a step, waits, and still asks for as many pods, in its groups and for us. PURE.

    Someone else may have changed one of both; then its numbers are not ours any more.
    """
    rayjob = parse_rayjob(body)
    groups = _groups(body)
    size = rayjob.pool(ROLLOUT_GROUP)
    rollout = groups.get(ROLLOUT_GROUP, {})
    trainer = groups.get(TRAINER_GROUP, {})
    same = (rayjob.uid, rayjob.suspended, rayjob.pools) == (step.rayjob.uid, True, step.rayjob.pools)
    numbers = {size.pods if size else None, rollout.get("replicas"), step.old}
    return same and len(numbers) == 1 and OVERRIDES_ANNOTATION in _annotations(trainer)


def change(body: Body, step: AskForPods, now: datetime) -> Body:
    """Merge patch of a RayJob: the rollout group, the trainer's settings, and what the operator itself reads. PURE.

    Args:
        body: one that is as decided.
    """
    spec = body["spec"]
    groups = copy.deepcopy(_groups(body))
    groups[ROLLOUT_GROUP].update(dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), step.new))
    files = _annotations(groups[TRAINER_GROUP])
    files[OVERRIDES_ANNOTATION] = _with_nodes(files[OVERRIDES_ANNOTATION], step)
    pods = json.loads(body["metadata"]["annotations"][PODS_ANNOTATION])
    pods[ROLLOUT_GROUP]["pods"] = step.new
    noted = {PODS_ANNOTATION: json.dumps(pods), ASKED_ANNOTATION: f"{format_timestamp(now)} {step.rounds}"}
    changed = {"entrypoint": _with_nodes(spec["entrypoint"], step)}
    if not parse_rayjob(body).altered:
        annotations = {**body["metadata"]["annotations"], **noted}
        noted[CHECKSUM_ANNOTATION] = digest_checked({"metadata": {"annotations": annotations}, "spec": changed})
    return {
        "metadata": {"annotations": noted},
        "spec": {**changed, "rayClusterSpec": {"workerGroupSpecs": list(groups.values())}},
    }


def _groups(body: Body) -> dict[str, dict[str, Any]]:
    """The worker groups of a RayJob, by name."""
    groups = (body["spec"].get("rayClusterSpec") or {}).get("workerGroupSpecs") or ()
    return {str(group.get("groupName")): group for group in groups}


def _annotations(group: dict[str, Any]) -> dict[str, str]:
    """The annotations of the pods of a group."""
    return ((group.get("template") or {}).get("metadata") or {}).get("annotations") or {}


def _with_nodes(text: str, step: AskForPods) -> str:
    """The trainer's settings with the number of nodes that the engines have."""
    return re.sub(rf"(?<=\b{re.escape(ROLLOUT_NODES)}=){step.old}\b", str(step.new), text)
