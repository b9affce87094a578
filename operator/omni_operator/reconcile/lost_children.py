"""Search for a RayJob and a RayCluster that the status records and no watch delivers: they may have lost labels."""

from __future__ import annotations

from datetime import datetime

from omni_operator.api.names import JOB_LABEL, Names
from omni_operator.api.status import Status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import Refused
from omni_operator.cluster.field_managers import find_author
from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS, Body, Key, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.reconcile import owned_objects
from omni_operator.reconcile.corrections import Change, describe
from omni_operator.reconcile.pass_memory import JobMemory
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Observation

LABELS = Change(("labels",))
OWNER = Change(("owner",))


async def recover_lost(
    cluster: Cluster, cache: ObjectCache, key: Key, facts: JobFacts, status: Status, memory: JobMemory, now: datetime
) -> bool:
    """Cache the objects that were found, with their labels; each one that does not exist is looked for once.

    The RayJob of the newest attempt gets the job as its owner again.

    Returns:
        Whether it is known what exists. It is not while the pause lasts after a refusal, or after another program has
        removed the labels many times.

    Raises:
        Refused: the API server refuses to say it, or a webhook removes the labels at once.
    """
    cached = cache.observed(key, facts.uid)
    number = _lost_rayjob(key, cached, status, memory)
    raycluster = _lost_raycluster(cached, status, memory)
    paused = memory.corrections.of(LABELS).pause_end(now, facts.generation)
    if (number or raycluster) and (paused or memory.refusals.standing(facts.generation, now)):
        return False

    async def restore(kind: Kind, live: Body, attempt: int) -> None:
        if changes := owned_objects.missing_labels(live, key, attempt):
            what = f"the labels of {kind.kind} {live['metadata']['name']}"
            author = find_author(live)
            live = await cluster.patch(kind, live, changes)
            if JOB_LABEL not in (live["metadata"].get("labels") or {}):
                raise Refused(f"a webhook or policy of the cluster removes {what}: exempt the objects of jobs from it")
            memory.corrections.add(LABELS, now, facts.generation, describe(what, author))
        cache.put(kind, live)

    orphan = next((found for found in cached.rayjobs if found.orphaned and found.attempt == cached.newest), None)
    if orphan and not (orphan.deleting or memory.corrections.of(OWNER).pause_end(now, facts.generation)):
        live = await owned_objects.find_rayjob(cluster, key, facts.uid, orphan.attempt, orphan.uid)
        if live and (changes := owned_objects.missing_owner(live, key, facts.uid)):
            text = describe(f"the ownerReferences of RayJob {orphan.name}", find_author(live))
            live = await cluster.patch(RAYJOBS, live, changes)
            memory.corrections.add(OWNER, now, facts.generation, text)
        if live:
            cache.put(RAYJOBS, live)
    if number:
        rayjob = await owned_objects.find_rayjob(cluster, key, facts.uid, number, status.children.ray_job_uid)
        if rayjob is None:
            memory.lost = Names(key[1]).attempt(number)
        else:
            await restore(RAYJOBS, rayjob, number)
    if raycluster:  # unseen, it would train at the same time as the next attempt
        name, uid = raycluster
        cluster_body = await owned_objects.find_raycluster(cluster, key, name, uid)
        if cluster_body is None:
            memory.lost_cluster = uid
        else:
            await restore(RAYCLUSTERS, cluster_body, status.attempts)
    return True


def _lost_rayjob(key: Key, cached: Observation, status: Status, memory: JobMemory) -> int | None:
    """Number of the attempt whose RayJob is to be looked for."""
    names = Names(key[1])
    name = names.attempt(cached.last) if cached.last > status.attempts else status.children.ray_job
    if name is None or name in (memory.lost, *(rayjob.name for rayjob in cached.rayjobs)):
        return None
    return names.number_of(name)


def _lost_raycluster(cached: Observation, status: Status, memory: JobMemory) -> tuple[str, str] | None:
    """Name and uid of the RayCluster that is to be looked for."""
    name = status.children.ray_cluster
    uid = status.children.ray_cluster_uid
    if name is None or uid is None or uid in (memory.lost_cluster, *(each.uid for each in cached.clusters)):
        return None
    return name, uid
