"""What tests of the chart look up in the objects that Helm makes of it."""

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Given = Callable[[Body], str]
Render = Callable[..., list[Body]]


def of_kind(bodies: list[Body], kind: str) -> list[Body]:
    return [body for body in bodies if body["kind"] == kind]


def one(bodies: list[Body], kind: str) -> Body:
    (single,) = of_kind(bodies, kind)
    return single


def operator_pod(bodies: list[Body]) -> Body:
    return one(bodies, "Deployment")["spec"]["template"]


def container(bodies: list[Body]) -> Body:
    (only,) = operator_pod(bodies)["spec"]["containers"]
    return only
