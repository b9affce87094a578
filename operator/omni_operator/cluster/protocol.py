"""Interface between the operator and the API server; a real client and an in-memory fake implement it."""

from dataclasses import dataclass
from typing import Any, Protocol

from omni_operator.status.decisions.situation import GroupChange

from .kinds import Body, Kind, Meta


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity behind a token, from a TokenReview.

    Attributes:
        user: e.g. `system:serviceaccount:team-a:runner`.
        pod, pod_uid: the pod that the token is bound to; empty for a token that is not bound to a pod.
    """

    user: str
    pod: str = ""
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Namespace, name, uid and version of all objects of a kind at one resource version."""

    items: list[Meta]
    version: int


class Cluster(Protocol):
    """Requests that the operator makes. Every method may raise a ClusterError."""

    async def apply(self, body: Body) -> Body:
        """Apply an object server-side, taking over fields of other managers; return the object afterwards."""

    async def apply_status(self, kind: Kind, body: Body, status: Body) -> Body:
        """Apply the status of an object that has not changed since `body`; return the object afterwards."""

    async def apply_condition(self, kind: Kind, namespace: str, name: str, uid: str, condition: Body | None) -> Body:
        """Apply one condition with a separate field manager, or remove it if applied before; return the object."""

    async def patch(self, kind: Kind, body: Body, changes: Body) -> Body:
        """Merge changes into an object that has not changed since `body`; return the object afterwards."""

    async def scale_group(self, kind: Kind, namespace: str, name: str, uid: str, change: GroupChange) -> Body:
        """Change the number of pods of a worker group, with a separate field manager; return the changed object.

        Raises Conflict if the object, the group at that index, or its number of pods is not the expected one.
        """

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid, children in the background; no error if it does not exist."""

    async def create(self, body: Body) -> Body:
        """Create an object; return it. AlreadyExists if there is one of its name."""

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """An object; None if it does not exist."""

    async def list_objects(self, kind: Kind, namespace: str, selector: str) -> list[Body]:
        """The objects of a namespace that match a label selector, which must be few."""

    async def list_metadata(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Namespace, name and uid of all objects that match a label selector."""

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server serves a kind."""

    async def read_schema(self, kind: Kind) -> Body | None:
        """The OpenAPI schema of a kind; None if the API server does not publish it, or not yet."""

    async def review_token(self, token: str, audience: str) -> Identity | None:
        """Identity of a token; None if it is not valid for the audience."""


def object_reference(body: Body) -> dict[str, Any]:
    """Reference to an object, for an Event."""
    meta = body["metadata"]
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "namespace": meta.get("namespace"),
        "name": meta["name"],
        "uid": meta.get("uid"),
    }
