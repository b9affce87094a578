"""Objects of a job: created, and changed only while the job is their controller.

Anyone who may create a job chooses the names of its objects. An object of another owner under such a name is neither
changed, adopted nor deleted.
"""

from __future__ import annotations

from typing import Any

from omni_operator.api.names import Names
from omni_operator.status.comparison import find_drift

from .errors import AlreadyExists, Conflict, KindAbsent, NameTaken
from .kinds import RAYCLUSTERS, RAYJOBS, Body, Key, kind_of
from .object_parser import owner_of
from .protocol import Cluster


async def ensure(cluster: Cluster, live: Body | None, rendered: Body) -> Body:
    """Create an object if `live` is None, else correct what differs from the rendered one; return it afterwards.

    Raises:
        NameTaken: another owner's object has the name.
        Conflict: an earlier job's object has the name, or the object changed in between; retry.
    """
    if live is None:
        live = await create(cluster, rendered)
    require_owned(live, rendered)
    changes = {} if live["metadata"].get("deletionTimestamp") else find_drift(live, _comparable(rendered))
    return await cluster.patch(kind_of(rendered), live, changes) if changes else live


async def create(cluster: Cluster, rendered: Body) -> Body:
    """Create an object, or return the one that was created before, by a pass whose result was lost.

    Raises:
        NameTaken, Conflict: as `ensure`.
    """
    kind, meta = kind_of(rendered), rendered["metadata"]
    try:
        return await cluster.create(rendered)
    except AlreadyExists:
        live = await cluster.read(kind, meta["namespace"], meta["name"])
    if live is None:
        raise Conflict(f"{kind.kind} {meta['name']} was deleted in between")
    require_owned(live, rendered)
    return live


async def find_rayjob(cluster: Cluster, key: Key, job_uid: str, attempt: int) -> Body | None:
    """The RayJob of an attempt, whatever its labels; None if the job has none."""
    try:
        live = await cluster.read(RAYJOBS, key[0], Names(key[1]).attempt(attempt))
    except KindAbsent:
        return None
    owner = owner_of(live) if live else None
    return None if owner is None or owner.uid != job_uid else live


async def find_raycluster(cluster: Cluster, key: Key, name: str, uid: str) -> Body | None:
    """The RayCluster with this uid, whatever its labels; None if it does not exist any more."""
    try:
        live = await cluster.read(RAYCLUSTERS, key[0], name)
    except KindAbsent:
        return None
    return None if live is None or live["metadata"]["uid"] != uid else live


def missing_labels(live: Body, key: Key, attempt: int) -> dict[str, Any]:
    """The change that gives an object of an attempt its labels, by which watches find it; nothing if it has them."""
    return find_drift(live, {"metadata": {"labels": Names(key[1]).attempt_labels(attempt)}})


def require_owned(live: Body, rendered: Body) -> None:
    """Raise an error unless the live object has the controller of the rendered one."""
    kind, name = kind_of(rendered), rendered["metadata"]["name"]
    owner, wanted = owner_of(live), owner_of(rendered)
    if owner == wanted:
        return
    if owner and wanted and (owner.kind, owner.name) == (wanted.kind, wanted.name):
        raise Conflict(f"{kind.kind} {name} belongs to an earlier job of this name; garbage collection deletes it")
    belongs = f"belongs to {owner.kind} {owner.name}" if owner else "does not belong to this job"
    raise NameTaken(
        f"{kind.kind} {name} exists and {belongs}. The operator does not touch it, and the job waits until it is "
        f"deleted; delete it, or create the job with another name"
    )


def _comparable(rendered: Body) -> dict[str, Any]:
    """The parts of a rendered object that are compared with the live one."""
    meta = {name: rendered["metadata"].get(name) or {} for name in ("labels", "annotations")}
    return {
        **{name: value for name, value in rendered.items() if name not in ("apiVersion", "kind", "metadata", "status")},
        "metadata": {name: value for name, value in meta.items() if value},
    }
