"""PURE: whether two documents are the same job."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from omni_operator.api import DiffusionRLJob

SHOWN = 5  # differences that a message names
UNREADABLE = "its spec, which this version of drl cannot read"


def find_differences(submitted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    """What another job of the same name has otherwise, as `spec.seed (1 there, 2 here)`; empty if they are the same.

    `spec.suspend` is left out, which suspending and resuming change, and so are labels and annotations that only the
    found job has. At most 5 are named.
    """
    wanted = DiffusionRLJob.model_validate(submitted)
    try:
        there = DiffusionRLJob.model_validate({**found, "status": {}})
    except ValidationError:
        return (UNREADABLE,)
    differences = list(_compare("spec", _spec(wanted), _spec(there)))
    for kind in ("labels", "annotations"):
        entries = getattr(wanted.metadata, kind)
        kept = getattr(there.metadata, kind)
        differences += _compare(f"metadata.{kind}", entries, {name: kept[name] for name in entries if name in kept})
    return (*differences[:SHOWN], *([f"{len(differences) - SHOWN} more fields"] if len(differences) > SHOWN else []))


def _spec(job: DiffusionRLJob) -> dict[str, Any]:
    return job.spec.model_dump(mode="json", by_alias=True, exclude={"suspend"})


def _compare(at: str, here: Any, there: Any) -> Iterator[str]:
    if isinstance(here, dict) and isinstance(there, dict):
        for name in sorted({*here, *there}):
            yield from _compare(f"{at}.{name}", here.get(name), there.get(name))
    elif here != there:
        yield f"{at} ({_short(there)} there, {_short(here)} here)"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
