"""Search for a RayJob and a RayCluster that the status records and no watch delivers: they may have lost labels."""

from omni_operator.api.names import JOB_LABEL, Names
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.cache.object_parser import owner_of
from omni_operator.cluster.errors import KindAbsent, Refused
from omni_operator.cluster.field_managers import find_author
from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS, Body, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan.objects import owner_reference
from omni_operator.reconcile.corrections import Change, describe
from omni_operator.reconcile.owned_objects import find_drift
from omni_operator.reconcile.subject import Subject

LABELS = Change(("labels",))
OWNER = Change(("owner",))


async def recover_lost(cluster: Cluster, cache: ObjectCache, job: Subject) -> bool:
    """Cache the objects that were found, with their labels; each one that does not exist is looked for once.

    The RayJob of the newest attempt gets the job as its owner again.

    Returns:
        Whether it is known what exists. It is not while the pause lasts after a refusal, or after another program has
        removed the labels many times.

    Raises:
        Refused: the API server refuses to say it, or a webhook removes the labels at once.
    """
    namespace, name = job.key
    memory = job.memory
    children = job.status.children
    names = Names(name)
    cached = cache.observed(job.key, job.facts.uid)
    newer = cached.last > job.status.attempts
    rayjob = names.attempt(cached.last) if newer else children.ray_job
    if rayjob in (memory.lost, *(seen.name for seen in cached.rayjobs)) or not names.number_of(rayjob or ""):
        rayjob = None
    raycluster = children.ray_cluster
    if children.ray_cluster_uid in (None, memory.lost_cluster, *(seen.uid for seen in cached.clusters)):
        raycluster = None
    paused = memory.corrections.pause_end(LABELS, job.now) or memory.refused.standing(job.now)
    if (rayjob or raycluster) and paused:
        return False
    orphan = next((seen for seen in cached.rayjobs if seen.orphaned and seen.attempt == cached.newest), None)
    if orphan and not (orphan.deleting or memory.corrections.pause_end(OWNER, job.now)):
        live = await _read(cluster, RAYJOBS, namespace, orphan.name)
        if live and _is_ours(live, orphan.uid, job):
            cache.put(RAYJOBS, await _restore_owner(cluster, live, job))
    if rayjob:
        live = await _read(cluster, RAYJOBS, namespace, rayjob)
        if live and _is_ours(live, children.ray_job_uid, job):
            attempt = names.number_of(rayjob) or 0
            cache.put(RAYJOBS, await _restore_labels(cluster, RAYJOBS, live, attempt, job))
        else:
            memory.lost = rayjob
    if raycluster:  # unseen, it would train at the same time as the next attempt
        live = await _read(cluster, RAYCLUSTERS, namespace, raycluster)
        if live and live["metadata"]["uid"] == children.ray_cluster_uid:
            cache.put(RAYCLUSTERS, await _restore_labels(cluster, RAYCLUSTERS, live, job.status.attempts, job))
        else:
            memory.lost_cluster = children.ray_cluster_uid
    return True


async def _read(cluster: Cluster, kind: Kind, namespace: str, name: str) -> Body | None:
    """An object, whatever its labels; None if it does not exist."""
    try:
        return await cluster.read(kind, namespace, name)
    except KindAbsent:
        return None


def _is_ours(rayjob: Body, uid: str | None, job: Subject) -> bool:
    """Whether a RayJob belongs to the job: by its owner, or by the uid that is known of it."""
    owner = owner_of(rayjob)
    return rayjob["metadata"]["uid"] == uid or (owner is not None and owner.uid == job.facts.uid)


async def _restore_labels(cluster: Cluster, kind: Kind, live: Body, attempt: int, job: Subject) -> Body:
    """Give an object of an attempt its labels again, by which watches find it; return it afterwards."""
    changes = find_drift(live, {"metadata": {"labels": Names(job.key[1]).attempt_labels(attempt)}})
    if not changes:
        return live
    what = f"the labels of {kind.kind} {live['metadata']['name']}"
    author = find_author(live)
    live = await cluster.patch(kind, live, changes)
    if JOB_LABEL not in (live["metadata"].get("labels") or {}):
        raise Refused(f"a webhook or policy of the cluster removes {what}: exempt the objects of jobs from it")
    job.memory.corrections.record(LABELS, job.now, describe(what, author))
    return live


async def _restore_owner(cluster: Cluster, live: Body, job: Subject) -> Body:
    """Make the job the controller of its RayJob again; return the RayJob afterwards."""
    owner = owner_of(live)
    if owner and owner.uid == job.facts.uid:
        return live
    others = [entry for entry in live["metadata"].get("ownerReferences") or () if not entry.get("controller")]
    owners = [*others, owner_reference(job.key[1], job.facts.uid)]
    text = describe(f"the ownerReferences of RayJob {live['metadata']['name']}", find_author(live))
    live = await cluster.patch(RAYJOBS, live, {"metadata": {"ownerReferences": owners}})
    job.memory.corrections.record(OWNER, job.now, text)
    return live
