"""Changes of an attempt's RayJob while a Kueue queue has not admitted it: another number of rollout pods.

Kueue updates the Workload of a suspended RayJob in place, which keeps its place in the queue, unless quota is reserved
for it: then Kueue deletes the Workload, with the reservation, and makes another one. So the Workload is read before.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from omni_operator.api.names import (
    ASKED_ANNOTATION,
    OVERRIDES_ANNOTATION,
    PODS_ANNOTATION,
    ROLLOUT_GROUP,
    TRAINER_GROUP,
)
from omni_operator.plan.overrides import ROLLOUT_NODES
from omni_operator.status.situation import AskForPods
from omni_operator.status.timestamps import format_timestamp

from .errors import Conflict, KindAbsent
from .kinds import RAYJOBS, WORKLOADS, Body
from .protocol import Cluster

OWNER_LABEL = "kueue.x-k8s.io/job-uid"  # of a Workload
PREEMPTING = "Pending the preemption of"  # in Kueue's message while pods of others are ending


async def ask_for_pods(cluster: Cluster, namespace: str, step: AskForPods, now: datetime) -> Body | None:
    """Ask the queue for another number of rollout pods; return the RayJob afterwards, None if it has not changed.

    Nothing is changed unless Kueue has tried the Workload and found no room, nor while it waits for pods that it
    preempts for it, or without Kueue.

    Raises:
        Conflict: the RayJob is not the one that the step was decided for, or the queue has admitted it.
    """
    name = step.rayjob.name
    body = await cluster.read(RAYJOBS, namespace, name)
    if body is None or body["metadata"]["uid"] != step.rayjob.uid:
        raise Conflict(f"{RAYJOBS.plural} {name}: another object")
    changes = change(body, step, now)
    try:
        workloads = await cluster.list_objects(WORKLOADS, namespace, f"{OWNER_LABEL}={step.rayjob.uid}")
    except KindAbsent:
        return None
    # The patch is a conflict if Kueue has admitted the RayJob since it was read.
    return await cluster.patch(RAYJOBS, body, changes) if has_no_room(workloads) else None


def has_no_room(workloads: Iterable[Body]) -> bool:
    """Whether a queue has tried the only Workload of a RayJob, and waits for quota. PURE."""
    found = list(workloads)
    if len(found) != 1 or (found[0].get("spec") or {}).get("active") is False:
        return False
    conditions = {one.get("type"): one for one in (found[0].get("status") or {}).get("conditions") or ()}
    tried = conditions.get("QuotaReserved") or {}
    pending = (tried.get("status"), tried.get("reason")) == ("False", "Pending")
    return pending and PREEMPTING not in str(tried.get("message"))


def change(body: Body, step: AskForPods, now: datetime) -> Body:
    """Merge patch of a RayJob: the rollout group, the trainer's settings, and what the operator itself reads. PURE.

    Raises:
        Conflict: it is not suspended any more, or has another number of pods than the step was decided for.
    """
    spec, annotations = body["spec"], body["metadata"].get("annotations") or {}
    groups: dict[str, dict[str, Any]] = {
        group["groupName"]: group for group in copy.deepcopy(spec["rayClusterSpec"]["workerGroupSpecs"])
    }
    rollout = groups.get(ROLLOUT_GROUP, {})
    if not spec.get("suspend") or rollout.get("replicas") != step.old:
        raise Conflict(f"{RAYJOBS.plural} {step.rayjob.name}: admitted, or its {ROLLOUT_GROUP} group has changed")
    rollout.update(dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), step.new))
    files = groups[TRAINER_GROUP]["template"]["metadata"]["annotations"]
    files[OVERRIDES_ANNOTATION] = _with_nodes(files[OVERRIDES_ANNOTATION], step)
    pods = json.loads(annotations[PODS_ANNOTATION])
    pods[ROLLOUT_GROUP]["pods"] = step.new
    noted = {PODS_ANNOTATION: json.dumps(pods), ASKED_ANNOTATION: f"{format_timestamp(now)} {step.rounds}"}
    changed = {"entrypoint": _with_nodes(spec["entrypoint"], step)}
    return {
        "metadata": {"annotations": noted},
        "spec": {**changed, "rayClusterSpec": {"workerGroupSpecs": list(groups.values())}},
    }


def _with_nodes(text: str, step: AskForPods) -> str:
    """The trainer's settings with the number of nodes that the engines have."""
    return re.sub(rf"(?<=\b{re.escape(ROLLOUT_NODES)}=){step.old}\b", str(step.new), text)
