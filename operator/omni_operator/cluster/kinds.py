"""Kinds of objects that the operator reads or writes, and their URLs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Body: TypeAlias = dict[str, Any]
Meta: TypeAlias = dict[str, Any]  # namespace, name, uid, resourceVersion and the rest of an object's metadata
Key: TypeAlias = tuple[str, str]  # namespace and name of a job


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and its API group.

    Attributes:
        group: empty for the core group.
        plural: its name in URLs.
    """

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """URL path of the group and version; a GET lists the kinds that are served."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of objects.

        Args:
            namespace: None: of all namespaces, or of a cluster-scoped kind.
            name: None: all of them.

        Raises:
            ValueError: a part is empty, `.` or `..`, which would make it the path of other objects.
        """
        parts = ["namespaces", namespace, self.plural] if namespace is not None else [self.plural]
        parts += [part for part in (name, subresource) if part is not None]
        return "/".join([self.root, *map(_quote, parts)])


def _quote(part: str) -> str:
    if part in ("", ".", ".."):
        raise ValueError(f"{part!r} is no name of an object: it would make this the path of other objects")
    return quote(part, safe="")


JOBS = Kind("diffusionrl.io", "v1alpha1", "diffusionrljobs", "DiffusionRLJob")
RAYJOBS = Kind("ray.io", "v1", "rayjobs", "RayJob")
RAYCLUSTERS = Kind("ray.io", "v1", "rayclusters", "RayCluster")
PODS = Kind("", "v1", "pods", "Pod")
NETWORK_POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_MONITORS = Kind("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
POD_DISRUPTION_BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENTS = Kind("events.k8s.io", "v1", "events", "Event")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
WORKLOADS = Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")

ATTEMPT_KINDS = (RAYJOBS, RAYCLUSTERS, PODS)
SHARED_KINDS = (NETWORK_POLICIES, POD_MONITORS)
ALL = (JOBS, *ATTEMPT_KINDS, *SHARED_KINDS, POD_DISRUPTION_BUDGETS, EVENTS, LEASES, WORKLOADS, TOKEN_REVIEWS)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in ALL}


def as_number(version: str) -> int:
    """A resourceVersion as a number; 0 if it is none."""
    return int(version) if version.isdigit() else 0


def version_of(meta: Mapping[str, Any]) -> int:
    """The resourceVersion in the metadata of an object, as a number."""
    return as_number(str(meta.get("resourceVersion") or ""))


class UnknownKind(ValueError):
    """An object of a kind that the operator does not handle."""


def kind_of(body: Mapping[str, Any]) -> Kind:
    """The kind of an object, from its `apiVersion` and `kind`.

    Raises:
        UnknownKind: the operator does not handle it.
    """
    api_version = str(body.get("apiVersion"))
    name = str(body.get("kind"))
    kind = _BY_NAME.get((api_version, name))
    if kind is None:
        raise UnknownKind(f"{name} of {api_version}")
    return kind
