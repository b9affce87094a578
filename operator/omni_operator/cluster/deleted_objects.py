"""Uids of deleted objects: the answer to a write may come after the event of the deletion that followed it."""

from __future__ import annotations

KEPT = 1024  # more than are deleted while a request is under way


class DeletedObjects:
    """The last objects that were deleted, each with the newest version that it had."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def add(self, uid: str, version: int) -> None:
        self._versions[uid] = max(version, self._versions.pop(uid, 0))
        if len(self._versions) > KEPT:
            del self._versions[next(iter(self._versions))]

    def includes(self, uid: str, version: int) -> bool:
        """Whether the object was deleted after this version. One that only lost its labels has newer versions."""
        return version < self._versions.get(uid, 0)
