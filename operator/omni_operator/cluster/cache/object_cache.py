"""Cache of observed objects: jobs, and their children by job. Watches, lists and answers to writes fill it.

Invariants:
- the newer of two versions of an object stays: an older watch event does not overwrite the answer to a write;
- an object that was deleted and created again under its name is a different object: events of the old one are ignored,
  and so are answers to a pass about it that arrive after the event of its deletion;
- a child belongs to a job through its controllers, up to the job's uid. The controller's name tells where to look;
  labels, which any user can edit, do so only for a child without a controller. A child whose controllers are deleted is
  recognized by their uids, which the job's status records.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from omni_operator.api.names import (
    JOB_LABEL,
    Names,
    ends_no_attempt,
    job_of_raycluster,
    job_of_rayjob,
)
from omni_operator.cluster.kinds import (
    ATTEMPT_KINDS,
    JOBS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    Body,
    Key,
    Kind,
    Meta,
    version_of,
)
from omni_operator.status.observed.observation import (
    Evidence,
    Observation,
    ObservedPod,
    ObservedRayCluster,
    ObservedRayJob,
)

from . import object_parser
from .job_summary import JobSummary, summarize
from .object_parser import Owner, owner_of
from .read_fields import keep_read_fields

NONE_DELETED: Mapping[str, int] = {}
EVIDENCE_KEPT = ATTEMPTS_KEPT = 8
Seen: TypeAlias = ObservedRayJob | ObservedRayCluster | ObservedPod | Body


@dataclass(frozen=True, slots=True)
class Child:
    """A child of a job: a parsed value if decisions read it, the object if only its content is compared.

    Attributes:
        owner: its controller.
    """

    uid: str
    version: int
    owner: Owner | None
    seen: Seen


@dataclass(slots=True)
class CachedJob:
    """Cache entry of one job; `body` and `summary` are None while only its children are known.

    Attributes:
        body: the fields of the job that passes read. It is never changed: an event replaces it.
        shared: changes with each object that all attempts share; no two entries ever have the same number.
        lineage: uids of the job's RayJobs and RayClusters, also of deleted ones, with the number of the attempt.
    """

    key: Key
    uid: str = ""
    version: int = 0
    body: Body | None = None
    summary: JobSummary | None = None
    shared: int = 0
    children: dict[tuple[Kind, str], Child] = field(default_factory=dict)
    lineage: dict[str, int] = field(default_factory=dict)
    evidence: tuple[tuple[int, Evidence], ...] = ()


NOTHING = CachedJob(("", ""))


class ObjectCache:
    """Jobs and their children as last observed."""

    def __init__(self) -> None:
        self._jobs: dict[Key, CachedJob] = {}
        self._changes = itertools.count(1)
        self._deleted: dict[Key, dict[str, int]] = {}

    @contextmanager
    def pass_over(self, key: Key) -> Iterator[None]:
        """Remember what is deleted of a job, during a pass over it, for answers that come after such an event."""
        self._deleted[key] = {}
        try:
            yield
        finally:
            del self._deleted[key]

    def put(self, kind: Kind, body: Body) -> Key | None:
        """Add or update an object. Return its job, or None if nothing changed or it belongs to no job."""
        key = self._key(kind, body)
        if key is None:
            return None
        meta = body["metadata"]
        uid = str(meta.get("uid", ""))
        version = version_of(meta)
        if version < self._deleted.get(key, NONE_DELETED).get(uid, 0):  # one that only lost its labels is newer
            return None
        entry = self._jobs.get(key)
        if entry is None:
            entry = self._jobs[key] = CachedJob(key)
        if kind == JOBS:
            if entry.body is not None and version <= entry.version:
                return None
            if entry.uid != uid:
                entry.evidence = ()
                entry.lineage.clear()
            entry.uid = uid
            entry.version = version
            entry.summary = summarize(body)
            entry.body = keep_read_fields(kind, body)
            entry.lineage |= _recorded(body)
            _trace(entry)
            return entry.key
        old = entry.children.get((kind, meta["name"]))
        if old and version <= old.version:
            return None
        child = Child(uid, version, owner_of(body), _parse(kind, body))
        entry.children[kind, meta["name"]] = child
        if kind not in ATTEMPT_KINDS:
            entry.shared = next(self._changes)
        if kind in (RAYJOBS, RAYCLUSTERS) and (old is None or old.uid != uid or old.owner != child.owner):
            _trace(entry)
        if isinstance(child.seen, ObservedPod):
            _add_evidence(entry, child)
        if old and _started(old.seen, child.seen):
            _forget_replaced_pods(entry, child)
        return entry.key if old is None or (old.seen, old.owner, old.uid) != (child.seen, child.owner, uid) else None

    def remove(self, kind: Kind, body: Body) -> Key | None:
        """Remove a deleted object. Return its job, or None if it was not cached."""
        key = self._key(kind, body)
        uid = str(body["metadata"].get("uid", ""))
        name = body["metadata"]["name"]
        if key in self._deleted:
            self._deleted[key][uid] = version_of(body["metadata"])
        entry = self._jobs.get(key) if key else None
        if entry is None:
            return None
        if kind == JOBS:
            return entry.key if self.remove_job(entry.key, uid) else None
        child = entry.children.get((kind, name))
        if child is None or child.uid != uid:
            return None
        if kind == PODS and "status" in body:
            _add_evidence(entry, replace(child, seen=object_parser.parse_pod(body)))
        del entry.children[kind, name]
        if kind not in ATTEMPT_KINDS:
            entry.shared = next(self._changes)
        if entry.body is None and not entry.children:
            del self._jobs[entry.key]
        return entry.key

    def remove_job(self, key: Key, uid: str) -> bool:
        """Remove the job with this uid; its children stay until they are deleted. Return whether it was cached."""
        entry = self._jobs.get(key)
        if entry is None or entry.uid != uid:
            return False
        entry.body = None
        entry.summary = None
        entry.uid = ""
        if not entry.children:
            del self._jobs[key]
        return True

    def remove_missing(self, kind: Kind, alive: Collection[str], listed: int, namespace: str | None = None) -> set[Key]:
        """Remove objects that are missing from a list at version `listed`. Return the jobs that changed.

        An interrupted watch may miss deletions, for which no event follows.

        Args:
            alive: uids of the objects in the list.
            namespace: the listed namespace; None: all.
        """
        touched = set()
        for key, entry in list(self._jobs.items()):
            if namespace not in (None, key[0]):
                continue
            for name, uid, version in list(self._cached(entry, kind)):
                if uid not in alive and version <= listed:
                    meta: Meta = {"namespace": key[0], "name": name, "uid": uid, "labels": {JOB_LABEL: key[1]}}
                    self.remove(kind, {"metadata": meta})
                    touched.add(key)
        return touched

    def is_newer(self, kind: Kind, alive: Mapping[str, int], listed: int, namespace: str | None = None) -> bool:
        """Whether an object is newer than in a list that contains everything up to version `listed`.

        That happens only if etcd was restored from an older snapshot meanwhile.

        Args:
            alive: versions of the listed objects by uid.
            namespace: the listed namespace; None: all.
        """
        return any(
            alive.get(uid, version) < version <= listed
            for key, entry in self._jobs.items()
            if namespace in (None, key[0])
            for _, uid, version in self._cached(entry, kind)
        )

    def job(self, key: Key) -> Body | None:
        """The job's object, or None. Do not change it."""
        return self._entry(key).body

    def uid(self, key: Key) -> str | None:
        """The job's uid; None if there is no job of that name."""
        entry = self._entry(key)
        return entry.uid if entry.body is not None else None

    def jobs(self) -> list[Key]:
        """All jobs."""
        return [key for key, entry in self._jobs.items() if entry.body is not None]

    def summary(self, key: Key) -> JobSummary | None:
        """The job's summary, or None."""
        return self._entry(key).summary

    def summarized_jobs(self) -> list[tuple[Key, JobSummary, Body]]:
        """All jobs with their summaries and objects, none of which changes afterwards: other threads may read them."""
        return [(key, job.summary, job.body) for key, job in self._jobs.items() if job.summary and job.body]

    def observed(self, key: Key, uid: str) -> Observation:
        """Children of the job with this uid, without the trainer's report."""
        entry = self._entry(key)
        attempts = [(kind, child) for (kind, _), child in entry.children.items() if kind in ATTEMPT_KINDS]
        mine: list[ObservedRayJob | ObservedRayCluster | ObservedPod] = []
        leftovers = 0
        alive = {child.uid for _, child in attempts}
        for kind, child in attempts:
            number = _attempt(entry, kind, child) if entry.uid == uid else None
            if number is not None and isinstance(child.seen, ObservedRayJob):
                mine.append(replace(child.seen, attempt=number, orphaned=not child.owner or child.owner.uid != uid))
            elif number is not None and isinstance(child.seen, ObservedRayCluster | ObservedPod):
                mine.append(replace(child.seen, attempt=number))
            elif child.owner and child.owner.uid not in {*alive, uid} and _is_left(kind, child.owner, key):
                leftovers += 1
        return Observation(
            rayjobs=tuple(seen for seen in mine if isinstance(seen, ObservedRayJob)),
            clusters=tuple(seen for seen in mine if isinstance(seen, ObservedRayCluster)),
            pods=tuple(seen for seen in mine if isinstance(seen, ObservedPod)),
            leftovers=leftovers,
            last=max(entry.lineage.values(), default=0) if entry.uid == uid else 0,
            evidence=entry.evidence,
        )

    def shared(self, key: Key, kind: Kind, name: str) -> Body | None:
        """An object that all attempts of a job share (NetworkPolicy, PodMonitor), or None. Do not change it."""
        child = self._entry(key).children.get((kind, name))
        return child.seen if child and isinstance(child.seen, dict) else None

    def shared_change(self, key: Key) -> int:
        """Number of the last change of an object that all attempts of a job share."""
        return self._entry(key).shared

    def _entry(self, key: Key) -> CachedJob:
        """What is cached of a job, to be read only; an empty entry if nothing is."""
        return self._jobs.get(key, NOTHING)

    def _key(self, kind: Kind, body: Body) -> Key | None:
        meta = body["metadata"]
        namespace = str(meta.get("namespace") or "")
        if kind == JOBS:
            return namespace, str(meta["name"])
        if job := _job_of(owner_of(body)) or (meta.get("labels") or {}).get(JOB_LABEL):
            return (namespace, str(job)) if kind not in ATTEMPT_KINDS or meta.get("uid") else None
        return None

    def _cached(self, entry: CachedJob, kind: Kind) -> Iterator[tuple[str, str, int]]:
        """Name, uid and version of a job's cached objects of a kind."""
        if kind == JOBS:
            if entry.body is not None:
                yield entry.key[1], entry.uid, entry.version
            return
        for (child_kind, name), child in entry.children.items():
            if child_kind == kind:
                yield name, child.uid, child.version


def _parse(kind: Kind, body: Body) -> Seen:
    if kind == RAYJOBS:
        return object_parser.parse_rayjob(body)
    if kind == RAYCLUSTERS:
        return object_parser.parse_raycluster(body)
    if kind == PODS:
        return object_parser.parse_pod(body)
    return keep_read_fields(kind, body)


def _add_evidence(job: CachedJob, child: Child) -> None:
    number = _attempt(job, PODS, child)
    if number is None or not isinstance(child.seen, ObservedPod):
        return
    group = child.seen.group
    if ends_no_attempt(group):
        return
    evidence = child.seen.evidence
    if evidence and (number, evidence) not in job.evidence:
        job.evidence = (*job.evidence, (number, evidence))[-EVIDENCE_KEPT:]


def _forget_replaced_pods(job: CachedJob, rayjob: Child) -> None:
    """Pods that were lost, or stopped by a queue, before the program started are no reason of a later failure."""
    attempt = _attempt(job, RAYJOBS, rayjob)
    job.evidence = tuple(
        (number, entry) for number, entry in job.evidence if number != attempt or (PODS, entry.pod) in job.children
    )


def _started(before: Seen, now: Seen) -> bool:
    """Whether Ray started the program of an attempt, for which it had no trainer pod, or a queue lets it start."""
    if not (isinstance(before, ObservedRayJob) and isinstance(now, ObservedRayJob)):
        return False
    return (before.waits and now.runs) or (before.deployment == "Suspended" != now.deployment)


def _attempt(job: CachedJob, kind: Kind, child: Child) -> int | None:
    """The attempt that a RayJob, RayCluster or pod belongs to through its controllers; None if it is not the job's."""
    uid = child.uid if kind == RAYJOBS else child.owner.uid if child.owner else ""
    return job.lineage.get(uid)


def _trace(job: CachedJob) -> None:
    """Add the uids of the job's RayJobs and of their RayClusters to its lineage."""
    names = Names(job.key[1])
    for (kind, name), child in job.children.items():
        if kind == RAYJOBS and child.owner and child.owner.uid == job.uid and (number := names.number_of(name)):
            job.lineage[child.uid] = number
    for (kind, _), child in job.children.items():
        if kind == RAYCLUSTERS and child.owner and (number := job.lineage.get(child.owner.uid)):
            job.lineage[child.uid] = number
    newest = max(job.lineage.values(), default=0)
    for uid in [uid for uid, number in job.lineage.items() if number <= newest - ATTEMPTS_KEPT]:
        del job.lineage[uid]


def _recorded(body: Body) -> dict[str, int]:
    """Uids of the newest attempt's objects in a job's status."""
    status = body.get("status")
    children, number = (status.get("children"), status.get("attempts")) if isinstance(status, dict) else (None, None)
    uids = (children.get("rayJobUID"), children.get("rayClusterUID")) if isinstance(children, dict) else ()
    return {str(uid): number for uid in uids if uid and isinstance(number, int) and number > 0}


def _is_left(kind: Kind, owner: Owner, key: Key) -> bool:
    """Whether the controller of an object that is not the job's was one of an earlier job of the same name."""
    names = Names(key[1])
    if kind == RAYJOBS:
        return owner.kind == JOBS.kind and owner.name == key[1]
    if kind == RAYCLUSTERS:
        return owner.kind == RAYJOBS.kind and names.number_of(owner.name) is not None
    return owner.kind == RAYCLUSTERS.kind and job_of_raycluster(owner.name) == key[1]


def _job_of(owner: Owner | None) -> str | None:
    """The job of a child by the name of its controller, which does not change as its labels do."""
    if owner is None:
        return None
    match owner.kind:
        case JOBS.kind:
            return owner.name
        case RAYJOBS.kind:
            return job_of_rayjob(owner.name)
        case RAYCLUSTERS.kind:
            return job_of_raycluster(owner.name)
        case _:
            return None
