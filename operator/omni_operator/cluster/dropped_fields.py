"""PURE: fields of a status that the API server drops, because the custom resource definition does not have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omni_operator.api.status import Status


@dataclass(frozen=True, slots=True)
class DroppedFields:
    """A status as it was sent, and as the API server kept it.

    While the job has the kept one, the sent one counts as written: a pass would otherwise send the same fields again
    and again.
    """

    sent: Status
    kept: Status

    def restore(self, written: Status) -> Status:
        """The sent status if it is what was written, else the written one."""
        return self.sent if written == self.kept else written


def find_dropped(sent: Mapping[str, Any], kept: Mapping[str, Any], at: str = "status") -> Iterator[str]:
    """Paths of the fields that were sent and not kept; those inside lists are not compared."""
    for name, value in sent.items():
        path = f"{at}.{name}"
        if name not in kept:
            if value not in ({}, []):  # an empty one means the same as an absent one
                yield path
        elif isinstance(value, Mapping) and isinstance(kept[name], Mapping):
            yield from find_dropped(value, kept[name], path)
