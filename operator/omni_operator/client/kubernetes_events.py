"""PURE: Kubernetes events, as those who read them need them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omni_operator.status.observed.evidence import without_control


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        uid: identifies the event; an event that happens again keeps it.
        time: when it last happened, as Kubernetes writes it; empty if the event does not say.
        kind, name: the object that it is about.
        count: how often it happened.
    """

    uid: str
    time: str
    type: str
    reason: str
    message: str
    kind: str
    name: str
    count: int


def parse_event(body: Mapping[str, Any]) -> Event:
    """An event of the core API, whichever API it was written by."""
    series = body.get("series") or {}
    about = body.get("involvedObject") or {}
    meta = body["metadata"]
    time = _time(body)
    return Event(
        uid=str(meta.get("uid") or meta.get("name")),
        time=time.partition(".")[0] + "Z" if "." in time else time,  # in whole seconds, as other times of Kubernetes
        type=str(body.get("type") or "Normal"),
        reason=str(body.get("reason") or ""),
        message=" ".join(without_control(str(body.get("message") or "")).split()),
        kind=str(about.get("kind") or ""),
        name=str(about.get("name") or ""),
        count=int(series.get("count") or body.get("count") or 1),
    )


def sort_events(bodies: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events, the oldest first."""
    # By the fraction of a second too, which `Event.time` leaves out.
    return tuple(map(parse_event, sorted(bodies, key=_time)))


def _time(body: Mapping[str, Any]) -> str:
    series = body.get("series") or {}
    times = (series.get("lastObservedTime"), body.get("lastTimestamp"), body.get("eventTime"))
    return str(next((time for time in times if time), None) or body["metadata"].get("creationTimestamp") or "")
