"""Packed objects: compressed JSON, in which what an earlier object of the kind has as well takes no space.

Thousands of jobs differ in names, uids, times and a few numbers. The first complete object of a kind becomes the
dictionary of those that are packed after it. Of a job that is too large to be started, only the reason is kept.
"""

from __future__ import annotations

import json
import zlib

from omni_operator.api.names import GROUP
from omni_operator.cluster.kinds import JOBS, Body, Kind
from omni_operator.cluster.nested_json import load_json
from omni_operator.plan.queues import scheduler_entries
from omni_operator.plan.refusals import ANNOTATIONS_BYTES

WINDOW_BITS, WINDOW = 13, 2**13  # bytes of the dictionary that zlib looks at
LEVEL, MEMORY = 6, 5  # 48 KB while it packs; zlib's default takes 268 KB
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
REFUSED = "refused"  # instead of the spec of a job: why it is not kept


class ObjectPacker:
    """Packs objects and unpacks its own. Other threads may unpack: a dictionary never changes."""

    def __init__(self) -> None:
        self._dictionaries: dict[Kind, bytes] = {}

    def pack(self, kind: Kind, body: Body) -> bytes:
        """Pack an object without `managedFields` and the annotations that nothing reads, which can be most of it.

        A job whose spec is too large has `REFUSED` instead of it, and neither labels nor annotations.
        """
        body = _without_unread(kind, body)
        text = json.dumps(body, separators=(",", ":")).encode()
        if kind == JOBS and len(text) > ANNOTATIONS_BYTES:
            text = json.dumps(_without_large_spec(body), separators=(",", ":")).encode()
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


def _without_unread(kind: Kind, body: Body) -> Body:
    meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    if "annotations" in meta:
        given = meta["annotations"] or {}
        read = [*scheduler_entries(given), *(name for name in given if name.startswith(f"{GROUP}/"))]
        meta["annotations"] = {
            name: given[name] for name in (read if kind == JOBS else given) if name != LAST_APPLIED
        }  # fmt: skip
    return {**body, "metadata": meta}


def _without_large_spec(job: Body) -> Body:
    """The job as it is kept: it stays as it is if its spec, labels and annotations fit into an annotation of a pod."""
    meta = job["metadata"]
    given = [job.get("spec"), meta.get("labels"), meta.get("annotations")]
    size = len(json.dumps(given, ensure_ascii=False, separators=(",", ":")))
    if size <= ANNOTATIONS_BYTES:
        return job
    why = (
        f"spec: takes {size} characters as JSON, with the labels of the job: at most {ANNOTATIONS_BYTES}, because pods "
        "carry it in an annotation; put long texts into files of a volume"
    )
    kept = {name: value for name, value in meta.items() if name not in ("labels", "annotations", "ownerReferences")}
    return {**{name: value for name, value in job.items() if name != "spec"}, "metadata": kept, REFUSED: why}
