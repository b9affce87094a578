"""The seam between the operator and an API server: a real one, and the one in memory of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from .kinds import Body, Kind, Meta


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose token it is, as TokenReview says.

    Attributes:
        user: e.g. `system:serviceaccount:team-a:runner`.
        pod: the pod that the token is bound to; None where it is bound to none.
    """

    user: str
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Metadata of objects, as it was at one version of the whole."""

    items: list[Meta]
    version: int


class Cluster(Protocol):
    """What the operator asks of an API server. Every method may raise a ClusterError."""

    async def apply(self, body: Body) -> Body:
        """Server-side apply of an object of ours, whoever else owned its fields; the object as it is then."""

    async def apply_status(self, kind: Kind, namespace: str, name: str, uid: str, status: Body) -> Body:
        """Make `status` what we say of the object with this uid; the object as it is then."""

    async def set_finalizers(self, kind: Kind, body: Body, finalizers: list[str]) -> Body:
        """Replace the finalizers of an object that has not changed since `body`; the object as it is then."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid, in the background; none is fine."""

    async def create(self, body: Body) -> bool:
        """Make an object unless one of its name is there; whether it was made."""

    async def listing(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Metadata of all objects with these labels."""

    def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[list[Body]]:
        """All objects with these labels, some at a time, so that they need not be in memory together."""

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server says that there is such a kind."""

    async def identify(self, token: str, audience: str) -> Identity | None:
        """Whose token this is; None where it is not good for this audience."""


def reference(body: Body) -> dict[str, Any]:
    """An object, as an Event refers to it."""
    meta = body["metadata"]
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "namespace": meta.get("namespace"),
        "name": meta["name"],
        "uid": meta.get("uid"),
    }
