"""Fields of objects that stay in the cache: what passes read, and no more."""

import copy
import json
from typing import Any

from omni_operator.cluster.cache.read_fields import LAST_APPLIED, keep_read_fields
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES


def job(**metadata: Any) -> dict[str, Any]:
    named = {"name": "red", "namespace": "ns", "uid": "u1", **metadata}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": named, "spec": {"seed": 1}, "status": {}}


def test_copies_that_the_api_server_keeps_and_annotations_that_nothing_reads_are_left_out() -> None:
    read = {"kueue.x-k8s.io/a": "b", "diffusionrl.io/pause-rolling-update": "true"}
    annotations = {LAST_APPLIED: json.dumps(job()), "a": "b", **read}
    body = job(managedFields=[{"manager": "x"}], annotations=annotations)
    original = copy.deepcopy(body)
    assert keep_read_fields(JOBS, body) == job(annotations=read)
    assert keep_read_fields(NETWORK_POLICIES, body) == job(annotations={"a": "b", **read})
    assert body == original, "the object itself is not changed"
    body["metadata"]["annotations"] = None
    assert keep_read_fields(JOBS, body) == job(annotations={})
