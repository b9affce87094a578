"""In-memory API server for tests: resource versions, the part of server-side apply that the operator uses, finalizers,
garbage collection by owner, ordered watch events. It records requests and fails on demand.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from omni_operator.api.names import FIELD_MANAGER
from omni_operator.api.status import UNSEEN
from omni_operator.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    KindAbsent,
    NamespaceTerminating,
    NotFound,
)
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Body, Kind, kind_of
from omni_operator.cluster.protocol import Identity, Listing
from omni_operator.status.decisions.situation import GroupChange
from omni_operator.status.observed.timestamps import format_timestamp

Place = tuple[Kind, str, str]
WITHOUT_GENERATION = ("metadata", "status")


class FakeCluster:
    """A `Cluster` in memory.

    Attributes:
        log: (verb, plural) of every request of the operator, in order.
        events: (type, kind, object) of every change, in order, as a watch would send it.
        failures: called before every request of the operator; an error that it returns is raised.
        absent: kinds that are not served. schemas: those that are published.
        terminating: namespaces that are being deleted.
        tokens: identity by (token, audience).
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._objects: dict[Place, Body] = {}
        self._alone: set[str] = set()  # types of conditions that were applied alone
        self.log: list[tuple[str, str]] = []
        self.events: list[tuple[str, Kind, Body]] = []
        self.failures: Callable[[str, Kind, str], ClusterError | None] = lambda verb, kind, name: None
        self.absent: set[Kind] = set()
        self.schemas: dict[Kind, Body] = {}
        self.terminating: set[str] = set()
        self.tokens: dict[tuple[str, str], Identity] = {}

    # Requests of the operator.

    async def apply(self, body: Body) -> Body:
        kind = kind_of(body)
        meta = body["metadata"]
        self._record("apply", kind, meta["name"])
        current = self._objects.get((kind, meta["namespace"], meta["name"]))
        if current is None:
            return self.make(body, manager=FIELD_MANAGER)
        uid = meta.get("uid")
        if uid and uid != current["metadata"]["uid"]:
            raise Conflict(f"{kind.plural} {meta['name']}: uid")
        changed = _merge(current, {name: value for name, value in body.items() if name != "status"})
        if len([owner for owner in changed["metadata"].get("ownerReferences") or () if owner.get("controller")]) > 1:
            raise ClusterError("only one controller")
        return self._store(kind, changed)

    async def apply_status(self, kind: Kind, body: Body, status: Body) -> Body:
        meta = body["metadata"]
        self._record("apply_status", kind, meta["name"])
        current = self._get(kind, meta["namespace"], meta["name"])
        for part in ("uid", "resourceVersion"):
            if current["metadata"][part] != meta[part]:
                raise Conflict(f"{kind.plural} {meta['name']}: {part}")
        alone = [body for body in (current.get("status") or {}).get("conditions") or () if body["type"] in self._alone]
        conditions = [*(status.get("conditions") or ()), *alone]
        return self._store(kind, {**current, "status": copy.deepcopy({**status, "conditions": conditions})})

    async def apply_condition(self, kind: Kind, namespace: str, name: str, uid: str, condition: Body | None) -> Body:
        self._record("apply_status", kind, name)
        current = self._get(kind, namespace, name)
        if current["metadata"]["uid"] != uid:
            raise Conflict(f"{kind.plural} {name}: uid")
        status = current.get("status") or {}
        others = [body for body in status.get("conditions") or () if body["type"] not in self._alone]
        self._alone |= {condition["type"]} if condition else set()
        conditions = [*others, *([condition] if condition else [])]
        return self._store(kind, {**current, "status": copy.deepcopy({**status, "conditions": conditions})})

    async def patch(self, kind: Kind, body: Body, changes: Body) -> Body:
        meta = body["metadata"]
        self._record("patch", kind, meta["name"])
        current = self._get(kind, meta["namespace"], meta["name"])
        if current["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise Conflict(f"{kind.plural} {meta['name']}: resourceVersion")
        return self._store(kind, _merge(current, changes))

    async def scale_group(self, kind: Kind, namespace: str, name: str, uid: str, change: GroupChange) -> Body:
        self._record("patch", kind, name)
        current = copy.deepcopy(self._get(kind, namespace, name))
        spec = current["spec"]["rayClusterSpec"] if kind == RAYJOBS else current["spec"]
        groups = spec["workerGroupSpecs"]
        group = groups[change.index] if change.index < len(groups) else {}
        same = change.old in (0, group.get("replicas")) and group.get("groupName") == change.group
        if current["metadata"]["uid"] != uid or not same:
            raise Conflict(f"{kind.plural} {name}: test failed")
        group["replicas"] = change.new
        if change.limits:
            group["minReplicas"], group["maxReplicas"] = change.limits
        if change.removed:
            group["scaleStrategy"] = {"workersToDelete": list(change.removed)}
        return self._store(kind, current)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._record("delete", kind, name)
        current = self._objects.get((kind, namespace, name))
        if current and current["metadata"]["uid"] == uid:
            self.remove(kind, namespace, name)

    async def create(self, body: Body) -> Body:
        kind = kind_of(body)
        meta = body["metadata"]
        self._record("create", kind, meta["name"])
        if (kind, meta["namespace"], meta["name"]) in self._objects:
            raise AlreadyExists(f"{kind.plural} {meta['name']} already exists")
        return self.make(body, manager=FIELD_MANAGER)

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        self._record("get", kind, name)
        return self.get(kind, namespace, name)

    async def list_objects(self, kind: Kind, namespace: str, selector: str) -> list[Body]:
        self._record("list", kind, "")
        return [
            body for body in self.all(kind) if body["metadata"]["namespace"] == namespace and _has_label(body, selector)
        ]

    async def list_metadata(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        self._record("list", kind, "")
        metadata = [
            copy.deepcopy(body["metadata"])
            for (found_kind, held_in, _), body in self._objects.items()
            if found_kind == kind and namespace in (None, held_in) and _has_label(body, selector)
        ]
        return Listing(metadata, next(self._versions))

    async def serves(self, kind: Kind) -> bool:
        self.log.append(("get", kind.plural))
        return kind not in self.absent

    async def read_schema(self, kind: Kind) -> Body | None:
        self.log.append(("get", kind.plural))
        return self.schemas.get(kind)

    async def review_token(self, token: str, audience: str) -> Identity | None:
        self.log.append(("create", "tokenreviews"))
        return self.tokens.get((token, audience))

    # Changes by users, KubeRay and kubelets.

    def make(self, body: Body, manager: str = "") -> Body:
        """Create an object as any client."""
        kind = kind_of(body)
        meta = body["metadata"]
        if meta["namespace"] in self.terminating:
            raise NamespaceTerminating(f"namespace {meta['namespace']} is being terminated")
        stored = copy.deepcopy(body)
        if kind == JOBS:
            stored.setdefault("status", dict(UNSEEN))
        stored["metadata"].update(
            uid=f"uid-{next(self._uids)}",
            creationTimestamp=format_timestamp(self._clock()),
            generation=1,
            manager=manager,
        )
        return self._store(kind, stored)

    def make_owned(
        self, kind: Kind, name: str, owner: Body, labels: Mapping[str, str] | None = None, **parts: Any
    ) -> Body:
        """Create an object whose controller is `owner`, with the labels of that too, as KubeRay does."""
        of_owner = owner["metadata"]
        controller = {"kind": owner["kind"], "name": of_owner["name"], "uid": of_owner["uid"], "controller": True}
        meta = {"namespace": of_owner["namespace"], "name": name, "ownerReferences": [controller]}
        meta["labels"] = {**of_owner["labels"], **(labels or {})}
        return self.make({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **parts})

    def change(self, kind: Kind, namespace: str, name: str, **parts: Any) -> Body:
        """Merge parts (`spec`, `status`, `metadata`) into an object."""
        return self._store(kind, _merge(self._get(kind, namespace, name), parts))

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object: now, or when its last finalizer is removed."""
        current = self._objects.get((kind, namespace, name))
        if current is None or current["metadata"].get("deletionTimestamp"):
            return
        self._store(
            kind, {**current, "metadata": {**current["metadata"], "deletionTimestamp": format_timestamp(self._clock())}}
        )

    def save(self) -> dict[Place, Body]:
        """A snapshot of all objects."""
        return copy.deepcopy(self._objects)

    def restore(self, saved: dict[Place, Body]) -> None:
        """Restore a snapshot as etcd does: no events are sent, and resource versions go back to the snapshot's."""
        self._objects = copy.deepcopy(saved)
        newest = max((int(body["metadata"]["resourceVersion"]) for body in saved.values()), default=0)
        self._versions = itertools.count(newest + 1)

    def collect(self) -> None:
        """Delete every object whose owner no longer exists, as the garbage collector does."""
        while True:
            alive = {body["metadata"]["uid"] for body in self._objects.values()}
            orphans = [
                key
                for key, body in self._objects.items()
                for owner in body["metadata"].get("ownerReferences") or ()
                if owner["uid"] not in alive and not body["metadata"].get("deletionTimestamp")
            ]
            if not orphans:
                return
            for key in orphans:
                self.remove(*key)

    def all(self, kind: Kind) -> list[Body]:
        """All objects of a kind, oldest first."""
        return [copy.deepcopy(body) for (held_kind, _, _), body in self._objects.items() if held_kind == kind]

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """An object, or None."""
        body = self._objects.get((kind, namespace, name))
        return copy.deepcopy(body) if body else None

    def counts(self) -> Counter[tuple[str, str]]:
        """Requests of the operator by verb and resource, since the last call."""
        requests = Counter(self.log)
        self.log.clear()
        return requests

    def _record(self, verb: str, kind: Kind, name: str) -> None:
        self.log.append((verb, kind.plural))
        if kind in self.absent:
            raise KindAbsent(f"{verb} {kind.plural}: the server could not find the requested resource")
        if error := self.failures(verb, kind, name):
            raise error

    def _get(self, kind: Kind, namespace: str, name: str) -> Body:
        try:
            return self._objects[kind, namespace, name]
        except KeyError:
            raise NotFound(f"{kind.plural} {name}") from None

    def _store(self, kind: Kind, body: Body) -> Body:
        meta = body["metadata"]
        key = (kind, meta["namespace"], meta["name"])
        old = self._objects.get(key)
        if old is not None and _without_version(old) == _without_version(body):
            return copy.deepcopy(old)
        if old is not None and any(old.get(part) != body.get(part) for part in {*old, *body} - {*WITHOUT_GENERATION}):
            meta = {**meta, "generation": meta.get("generation", 1) + 1}
        body = copy.deepcopy({**body, "metadata": {**meta, "resourceVersion": str(next(self._versions))}})
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            self._objects.pop(key, None)
            self.events.append(("DELETED", kind, copy.deepcopy(body)))
        else:
            self._objects[key] = body
            self.events.append(("ADDED" if old is None else "MODIFIED", kind, copy.deepcopy(body)))
        return copy.deepcopy(body)


def _without_version(body: Body) -> Body:
    meta = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    return {**body, "metadata": meta}


def _has_label(body: Body, selector: str) -> bool:
    """Whether a selector `NAME=VALUE` or `NAME` selects an object; the empty one selects all."""
    name, _, value = selector.partition("=")
    labels = body["metadata"].get("labels") or {}
    return not name or (name in labels and value in ("", labels[name]))


def _merge(current: Any, applied: Any) -> Any:
    """Merge `applied` into `current`: lists and scalars are replaced, None removes."""
    if not isinstance(current, dict) or not isinstance(applied, dict):
        return copy.deepcopy(applied)
    merged = dict(current)
    for name, value in applied.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged
