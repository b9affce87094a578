"""Fields of objects that passes read. For a job that is too large to start, only the reason is kept."""

import json
import sys
from typing import Any

from omni_operator.api.names import GROUP
from omni_operator.cluster.kinds import JOBS, Body, Kind
from omni_operator.plan.queues import scheduler_entries
from omni_operator.plan.refusals import ANNOTATIONS_BYTES

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SHORT = 64  # characters of a text that many objects may have, such as a reason or a time
REFUSED = "refused"  # instead of the spec of a job: why it is not kept


def keep_read_fields(kind: Kind, body: Body) -> Body:
    """An object without `managedFields` and the annotations that nothing reads, which can be most of it.

    A job whose spec is too large has `REFUSED` instead of it, and neither labels nor annotations.
    """
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    if "annotations" in metadata:
        annotations = metadata["annotations"] or {}
        read = annotations
        if kind == JOBS:
            ours = [name for name in annotations if name.startswith(f"{GROUP}/")]
            read = [*scheduler_entries(annotations), *ours]
        metadata["annotations"] = {name: annotations[name] for name in read if name != LAST_APPLIED}
    kept = {**body, "metadata": metadata}
    if kind == JOBS:
        kept = _without_large_spec(kept)
    return _with_shared_texts(kept)


def _with_shared_texts(value: Any) -> Any:
    """A copy in which equal names and short texts of all objects are one string: parsed JSON has one for each."""
    if isinstance(value, str):
        return sys.intern(value) if len(value) <= SHORT else value
    if isinstance(value, dict):
        return {sys.intern(name): _with_shared_texts(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_shared_texts(item) for item in value]
    return value


def _without_large_spec(job: Body) -> Body:
    """The job as it is kept: it stays as it is if its spec, labels and annotations fit into an annotation of a pod."""
    metadata = job["metadata"]
    carried = [job.get("spec"), metadata.get("labels"), metadata.get("annotations")]
    size = len(json.dumps(carried, ensure_ascii=False, separators=(",", ":")))
    if size <= ANNOTATIONS_BYTES:
        return job
    reason = (
        f"spec: takes {size} characters as JSON, with the labels of the job: at most {ANNOTATIONS_BYTES}, because pods "
        "carry it in an annotation; put long texts into files of a volume"
    )
    dropped = ("labels", "annotations", "ownerReferences")
    kept = {name: value for name, value in metadata.items() if name not in dropped}
    return {**{name: value for name, value in job.items() if name != "spec"}, "metadata": kept, REFUSED: reason}
