"""Objects of a job: created, and changed only while the job is their controller.

Anyone who may create a job chooses the names of its objects. An object of another owner under such a name is neither
changed, adopted nor deleted.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from omni_operator.api.names import JOB_LABEL, RENDERED_ANNOTATION
from omni_operator.cluster.cache.object_parser import Owner, owner_of
from omni_operator.cluster.errors import AlreadyExists, Conflict, NameTaken, NotGoneYet, Refused
from omni_operator.cluster.kinds import Body, Kind
from omni_operator.cluster.protocol import Cluster

Path: TypeAlias = tuple[str, ...]
# Parts of an object that others may not extend: an entry that was not rendered changes what is selected or allowed.
CLOSED: frozenset[Path] = frozenset(
    {("spec", "selector"), ("spec", "podSelector"), ("spec", "ingress"), ("spec", "egress")}
)


async def ensure_owned(cluster: Cluster, kind: Kind, live: Body | None, rendered: Body) -> Body:
    """Create an object if `live` is None, else correct what differs from the rendered one; return it afterwards.

    Raises:
        NameTaken: another owner's object has the name.
        NotGoneYet: an earlier job's object has the name; retry.
        Conflict: the object changed in between; retry.
    """
    if live is None:
        live = await create_owned(cluster, kind, rendered)
    else:
        _require_owner(kind, rendered["metadata"]["name"], owner_of(live), owner_of(rendered))
    changes = {} if live["metadata"].get("deletionTimestamp") else find_drift(live, _comparable(rendered))
    return await cluster.patch(kind, live, changes) if changes else live


async def create_owned(cluster: Cluster, kind: Kind, rendered: Body) -> Body:
    """Create an object, or return the one that was created before, by a pass whose result was lost.

    Raises:
        NameTaken, NotGoneYet, Conflict: as `ensure_owned`.
        Refused: the cluster stores it without what makes it the job's.
    """
    meta = rendered["metadata"]
    existed = False
    try:
        live = await cluster.create(rendered)
    except AlreadyExists:
        stored = await cluster.read(kind, meta["namespace"], meta["name"])
        if stored is None:
            raise Conflict(f"{kind.kind} {meta['name']} was deleted in between") from None
        live = stored
        existed = True
    owner = owner_of(live)
    wanted = owner_of(rendered)
    digest = (live["metadata"].get("annotations") or {}).get(RENDERED_ANNOTATION)
    # One without an owner was created by an earlier pass if the uid of the job in the digest tells so.
    if existed and (owner or digest != meta["annotations"][RENDERED_ANNOTATION]):
        _require_owner(kind, meta["name"], owner, wanted)
        return live
    lost = [f"label {JOB_LABEL}"] if JOB_LABEL not in (live["metadata"].get("labels") or {}) else []
    lost += ["ownerReferences"] if owner != wanted else []
    if not lost:
        return live
    # Watches would not deliver it, or garbage collection not delete it.
    await cluster.delete(kind, meta["namespace"], meta["name"], live["metadata"]["uid"])
    raise Refused(
        f"{kind.kind} {meta['name']} was stored without its {' and '.join(lost)}, and was deleted again: a webhook or "
        "policy of the cluster removes or replaces them; exempt the objects of jobs from it"
    )


def _require_owner(kind: Kind, name: str, owner: Owner | None, wanted: Owner | None) -> None:
    """Raise an error unless an object has the controller that was rendered."""
    if owner == wanted:
        return
    if owner and wanted and (owner.kind, owner.name) == (wanted.kind, wanted.name):
        raise NotGoneYet(
            f"{kind.kind} {name} belongs to an earlier job of this name: garbage collection deletes it when no "
            "finalizer keeps it any more"
        )
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


def find_drift(live: Mapping[str, Any], rendered: Mapping[str, Any], at: Path = ()) -> dict[str, Any]:
    """Merge patch that corrects a live object; empty if it has everything that was rendered. PURE.

    Additions by others (labels, annotations, defaults of the API server) stay, except in closed parts.
    """
    closed = at[:2] in CLOSED
    patch: dict[str, Any] = {name: None for name in live if name not in rendered} if closed else {}
    for name, wanted in rendered.items():
        there = live.get(name)
        if isinstance(wanted, Mapping) and isinstance(there, Mapping):
            if part := find_drift(there, wanted, (*at, name)):
                patch[name] = part
        elif not (there == wanted if (*at, name)[:2] in CLOSED else covers(there, wanted)):
            patch[name] = wanted
    return patch


def covers(live: Any, rendered: Any) -> bool:
    """Whether the live value has everything that was rendered; additions by others do not count."""
    if isinstance(rendered, Mapping):
        return isinstance(live, Mapping) and all(covers(live.get(name), value) for name, value in rendered.items())
    if isinstance(rendered, list):
        if not isinstance(live, list) or len(live) != len(rendered):
            return False
        return all(covers(there, wanted) for there, wanted in zip(live, rendered, strict=True))
    return bool(live == rendered)
