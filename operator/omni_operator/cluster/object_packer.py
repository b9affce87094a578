"""Packed objects: compressed JSON, in which what an earlier object of the kind has as well takes no space.

Thousands of jobs differ in names, uids, times and a few numbers. The first complete object of a kind becomes the
dictionary of those that are packed after it.
"""

from __future__ import annotations

import json
import zlib

from .kinds import JOBS, Body, Kind
from .nested_json import load_json

WINDOW_BITS, WINDOW = 13, 2**13  # bytes of the dictionary that zlib looks at
LEVEL, MEMORY = 6, 5  # 48 KB while it packs; zlib's default takes 268 KB
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class ObjectPacker:
    """Packs objects and unpacks its own. Other threads may unpack: a dictionary never changes."""

    def __init__(self) -> None:
        self._dictionaries: dict[Kind, bytes] = {}

    def pack(self, kind: Kind, body: Body) -> bytes:
        """Pack an object without `managedFields` and the last-applied annotation, which can be most of it."""
        text = json.dumps(_without_copies(body), separators=(",", ":")).encode()
        dictionary = self._dictionaries.get(kind)
        settings = (LEVEL, zlib.DEFLATED, WINDOW_BITS, MEMORY, zlib.Z_DEFAULT_STRATEGY)
        packer = zlib.compressobj(*settings, dictionary) if dictionary else zlib.compressobj(*settings)
        packed = packer.compress(text) + packer.flush()
        # Most of a job is its status.
        if dictionary is None and (kind != JOBS or b'"conditions":' in text):
            self._dictionaries[kind] = text[-WINDOW:]
        return packed

    def unpack(self, kind: Kind, packed: bytes) -> Body:
        """The object that was packed."""
        # An object that was packed without a dictionary does not ask for one.
        unpacker = zlib.decompressobj(WINDOW_BITS, self._dictionaries.get(kind, b""))
        found: Body = load_json(unpacker.decompress(packed))
        return found


def _without_copies(body: Body) -> Body:
    meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    if "annotations" in meta:
        annotations = meta["annotations"] or {}
        meta["annotations"] = {name: value for name, value in annotations.items() if name != LAST_APPLIED}
    return {**body, "metadata": meta}
