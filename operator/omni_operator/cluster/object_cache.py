"""What is known of the API server's objects: jobs, and their children by job. Filled by watches, lists and answers.

Invariants:
- of two versions of one object the newer one stays, so an answer to a write is not undone by an older watch event;
- an object that was deleted and made again under its name is another object: events of the old one change nothing;
- a child belongs to the job that its label names; what is older than that job was a namesake's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from omni_operator.api.names import JOB_LABEL
from omni_operator.status import evidence
from omni_operator.status.observation import Evidence, Observation, ObservedPod, ObservedRayCluster, ObservedRayJob

from . import object_parser
from .kinds import ATTEMPT_KINDS, JOBS, PODS, RAYCLUSTERS, RAYJOBS, Body, Key, Kind, Meta

EVIDENCE_KEPT = 8
Seen: TypeAlias = ObservedRayJob | ObservedRayCluster | ObservedPod | bytes


@dataclass(frozen=True, slots=True)
class Child:
    """An object of a job: a value where decisions read it, its JSON where only its content is compared."""

    uid: str
    version: int
    owner: str
    created: str
    seen: Seen


@dataclass(slots=True)
class _Job:
    """What is known of one job; `raw` is None while only children are known."""

    uid: str = ""
    version: int = 0
    created: str = ""
    raw: bytes | None = None
    children: dict[tuple[Kind, str], Child] = field(default_factory=dict)
    evidence: list[tuple[int, Evidence]] = field(default_factory=list)


class ObjectCache:
    """The operator's view of the cluster."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}

    def put(self, kind: Kind, body: Body) -> Key | None:
        """Remember an object; the job that it matters to, or None where nothing changed or it is nobody's."""
        key = self._key(kind, body)
        if key is None:
            return None
        meta = body["metadata"]
        uid, version = str(meta.get("uid", "")), _version(meta)
        entry = self._jobs.setdefault(key, _Job())
        if kind == JOBS:
            if entry.uid == uid and entry.raw is not None and version <= entry.version:
                return None
            if entry.uid != uid:
                entry.evidence.clear()
            entry.uid, entry.version, entry.raw = uid, version, _trim(body)
            entry.created = str(meta.get("creationTimestamp") or "")
            return key
        old = entry.children.get((kind, meta["name"]))
        if old and old.uid == uid and version <= old.version:
            return None
        child = Child(uid, version, _owner(body), str(meta.get("creationTimestamp") or ""), _seen(kind, body))
        entry.children[kind, meta["name"]] = child
        if isinstance(child.seen, ObservedPod):
            self._remember(entry, child.seen)
        return key if old is None or old.seen != child.seen or old.uid != uid else None

    def remove(self, kind: Kind, body: Body) -> Key | None:
        """Forget an object that was deleted; the job that it matters to."""
        key = self._key(kind, body)
        entry = self._jobs.get(key) if key else None
        if key is None or entry is None:
            return None
        uid, name = str(body["metadata"].get("uid", "")), body["metadata"]["name"]
        if kind == JOBS:
            if entry.uid != uid:
                return None
            entry.raw, entry.uid = None, ""
        else:
            child = entry.children.get((kind, name))
            if child is None or child.uid != uid:
                return None
            if kind == PODS and "status" in body:
                self._remember(entry, object_parser.parse_pod(body, object_parser.attempt_of(body) or 0))
            del entry.children[kind, name]
        if entry.raw is None and not entry.children:
            del self._jobs[key]
        return key

    def forget(self, kind: Kind, key: Key, name: str, uid: str) -> Key | None:
        """Forget an object of a job that the API server said is gone, though no event said so."""
        meta = {"namespace": key[0], "name": name, "uid": uid, "labels": {JOB_LABEL: key[1]}}
        return self.remove(kind, {"metadata": meta})

    def prune(self, kind: Kind, alive: Iterable[Meta], listed: int, namespace: str | None = None) -> set[Key]:
        """Forget what a list, as it was at version `listed`, does not hold; the jobs that this changes something for.

        A watch that was broken off may have missed deletions, of which no event ever tells.

        Args:
            namespace: that was listed; None: all.
        """
        there = {(meta["namespace"], meta["name"], meta["uid"]) for meta in alive}
        touched = set()
        for key, entry in list(self._jobs.items()):
            if namespace not in (None, key[0]):
                continue
            for name, uid, version in list(_held(entry, kind, key)):
                if (key[0], name, uid) not in there and version <= listed:
                    self.forget(kind, key, name, uid)
                    touched.add(key)
        return touched

    def job(self, key: Key) -> Body | None:
        """The job as the API server has it."""
        entry = self._jobs.get(key)
        return json.loads(entry.raw) if entry and entry.raw is not None else None

    def jobs(self) -> list[Key]:
        """All jobs."""
        return [key for key, entry in self._jobs.items() if entry.raw is not None]

    def observed(self, key: Key, uid: str) -> Observation:
        """Children of the job with this uid, without reports and refusals."""
        entry = self._jobs.get(key, _Job())
        attempts = [child for (kind, _), child in entry.children.items() if kind in ATTEMPT_KINDS]
        mine = [child for child in attempts if child.owner in ("", uid) and child.created >= entry.created]
        return Observation(
            rayjobs=tuple(child.seen for child in mine if isinstance(child.seen, ObservedRayJob)),
            clusters=tuple(child.seen for child in mine if isinstance(child.seen, ObservedRayCluster)),
            pods=tuple(child.seen for child in mine if isinstance(child.seen, ObservedPod)),
            leftovers=len(attempts) - len(mine),
            evidence=tuple(entry.evidence),
        )

    def shared(self, key: Key, kind: Kind, name: str) -> Body | None:
        """An object that a job's attempts share, as far as it is remembered: labels, annotations and content."""
        entry = self._jobs.get(key)
        child = entry.children.get((kind, name)) if entry else None
        return json.loads(child.seen) if child and isinstance(child.seen, bytes) else None

    def pod_names(self, key: Key) -> set[str]:
        """Names of a job's pods."""
        entry = self._jobs.get(key, _Job())
        return {name for kind, name in entry.children if kind == PODS}

    def _key(self, kind: Kind, body: Body) -> Key | None:
        meta = body["metadata"]
        namespace = str(meta.get("namespace") or "")
        if kind == JOBS:
            return namespace, str(meta["name"])
        job = (meta.get("labels") or {}).get(JOB_LABEL)
        if job:
            return (namespace, str(job)) if kind not in ATTEMPT_KINDS or meta.get("uid") else None
        return None

    def _remember(self, entry: _Job, pod: ObservedPod) -> None:
        found = evidence.find_evidence(pod)
        if found and (pod.attempt, found) not in entry.evidence:
            entry.evidence.append((pod.attempt, found))
            del entry.evidence[:-EVIDENCE_KEPT]


def _held(entry: _Job, kind: Kind, key: Key) -> Iterator[tuple[str, str, int]]:
    """Name, uid and version of what is remembered of a kind."""
    if kind == JOBS and entry.raw is not None:
        yield key[1], entry.uid, entry.version
    for (found, name), child in entry.children.items():
        if found == kind:
            yield name, child.uid, child.version


def _version(meta: Body) -> int:
    text = str(meta.get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0


def _owner(body: Body) -> str:
    """Uid of the job that owns an object; empty where something between them does."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == JOBS.kind and owner.get("controller"):
            return str(owner.get("uid"))
    return ""


def _seen(kind: Kind, body: Body) -> Seen:
    attempt = object_parser.attempt_of(body) or 0
    if kind == RAYJOBS:
        return object_parser.parse_rayjob(body, attempt)
    if kind == RAYCLUSTERS:
        return object_parser.parse_raycluster(body, attempt)
    if kind == PODS:
        return object_parser.parse_pod(body, attempt)
    return _trim(body)


def _trim(body: Body) -> bytes:
    """The object without what the API server keeps for itself, which can be most of it."""
    meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    annotations = {
        name: value
        for name, value in (meta.get("annotations") or {}).items()
        if name != "kubectl.kubernetes.io/last-applied-configuration"
    }
    if "annotations" in meta:
        meta["annotations"] = annotations
    return json.dumps({**body, "metadata": meta}, separators=(",", ":")).encode()
