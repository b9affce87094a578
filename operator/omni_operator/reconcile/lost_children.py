"""Search for a RayJob and a RayCluster that the status records and no watch delivers: they may have lost labels."""

from __future__ import annotations

from omni_operator.api.names import JOB_LABEL, Names
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import Refused
from omni_operator.cluster.field_managers import find_author
from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS, Body, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.reconcile import owned_objects
from omni_operator.reconcile.corrections import Change, describe
from omni_operator.reconcile.subject import Subject
from omni_operator.status.observed.observation import Observation

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
    key = job.key
    uid = job.facts.uid
    children = job.status.children
    corrections = job.memory.corrections
    cached = cache.observed(key, uid)
    number = _lost_rayjob(job, cached)
    raycluster = _lost_raycluster(job, cached)
    if (number or raycluster) and (job.pause_end(LABELS) or job.standing_refusal):
        return False

    async def restore(kind: Kind, live: Body, attempt: int) -> None:
        if changes := owned_objects.missing_labels(live, key, attempt):
            what = f"the labels of {kind.kind} {live['metadata']['name']}"
            author = find_author(live)
            live = await cluster.patch(kind, live, changes)
            if JOB_LABEL not in (live["metadata"].get("labels") or {}):
                raise Refused(f"a webhook or policy of the cluster removes {what}: exempt the objects of jobs from it")
            corrections.add(LABELS, job.now, job.facts.generation, describe(what, author))
        cache.put(kind, live)

    orphan = next((found for found in cached.rayjobs if found.orphaned and found.attempt == cached.newest), None)
    if orphan and not (orphan.deleting or job.pause_end(OWNER)):
        live = await owned_objects.find_rayjob(cluster, key, uid, orphan.attempt, orphan.uid)
        if live and (changes := owned_objects.missing_owner(live, key, uid)):
            text = describe(f"the ownerReferences of RayJob {orphan.name}", find_author(live))
            live = await cluster.patch(RAYJOBS, live, changes)
            corrections.add(OWNER, job.now, job.facts.generation, text)
        if live:
            cache.put(RAYJOBS, live)
    if number:
        rayjob = await owned_objects.find_rayjob(cluster, key, uid, number, children.ray_job_uid)
        if rayjob is None:
            job.memory.lost = Names(key[1]).attempt(number)
        else:
            await restore(RAYJOBS, rayjob, number)
    if raycluster:  # unseen, it would train at the same time as the next attempt
        found = await owned_objects.find_raycluster(cluster, key, *raycluster)
        if found is None:
            job.memory.lost_cluster = children.ray_cluster_uid
        else:
            await restore(RAYCLUSTERS, found, job.status.attempts)
    return True


def _lost_rayjob(job: Subject, cached: Observation) -> int | None:
    """Number of the attempt whose RayJob is to be looked for."""
    names = Names(job.key[1])
    name = names.attempt(cached.last) if cached.last > job.status.attempts else job.status.children.ray_job
    if name is None or name in (job.memory.lost, *(rayjob.name for rayjob in cached.rayjobs)):
        return None
    return names.number_of(name)


def _lost_raycluster(job: Subject, cached: Observation) -> tuple[str, str] | None:
    """Name and uid of the RayCluster that is to be looked for."""
    name = job.status.children.ray_cluster
    uid = job.status.children.ray_cluster_uid
    if name is None or uid is None or uid in (job.memory.lost_cluster, *(each.uid for each in cached.clusters)):
        return None
    return name, uid
