"""Packed objects: what comes out is what went in, and objects of a kind share what they have in common."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_operator.cluster.cache.object_packer import LAST_APPLIED, WINDOW, ObjectPacker
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
KINDS = ("Admitted", "Ready", "Updated", "Suspended", "Succeeded", "Failed", "ResultsKept", "ProgressStalled")
CONDITIONS = [
    {"type": kind, "status": "Unknown", "reason": f"{kind}NotKnown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for kind in KINDS
]


def job(number: int, **parts: Any) -> dict[str, Any]:
    meta = {"name": f"job-{number}", "namespace": "ns", "uid": f"{number:08x}-{number * 7919:012x}"}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": {"seed": number}, **parts}


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_every_object_comes_back(values: list[Any]) -> None:
    packer = ObjectPacker()
    bodies = [job(number, status=value, extra=value) for number, value in enumerate(values)]
    packed = [packer.pack(JOBS, body) for body in bodies]
    assert [packer.unpack(JOBS, found) for found in packed] == bodies


def test_an_object_takes_only_what_it_has_for_itself() -> None:
    packer = ObjectPacker()
    new = [len(packer.pack(JOBS, job(number))) for number in range(2)]
    first, *others = (len(packer.pack(JOBS, job(number, status={"conditions": CONDITIONS}))) for number in range(2, 50))
    assert new[1] >= new[0] - 2, "a job without a status is no dictionary for others"
    assert max(others) < 100 < first
    policies = [len(packer.pack(NETWORK_POLICIES, job(number, status={}))) for number in range(2)]
    assert policies[1] < 0.5 * policies[0], "other kinds have no status"


def test_the_end_of_a_long_object_is_a_dictionary_and_keeps_little() -> None:
    packer = ObjectPacker()
    long = job(1, data=[f"{number * 7919:x}" for number in range(100_000)], status={"conditions": CONDITIONS})
    packed = packer.pack(JOBS, long)
    assert {len(kept) for kept in packer._dictionaries.values()} == {WINDOW}
    assert len(packer.pack(JOBS, job(2, status={"conditions": CONDITIONS}))) < 150
    assert packer.unpack(JOBS, packed) == long


def test_copies_that_the_api_server_keeps_and_annotations_that_nothing_reads_are_left_out() -> None:
    packer, read = ObjectPacker(), {"kueue.x-k8s.io/a": "b", "diffusionrl.io/pause-rolling-update": "true"}
    body = job(1)
    annotations = {LAST_APPLIED: json.dumps(body), "a": "b", **read}
    body["metadata"] |= {"managedFields": [{"manager": "x"}], "annotations": annotations}
    found = packer.unpack(JOBS, packer.pack(JOBS, body))
    assert found["metadata"] == {**job(1)["metadata"], "annotations": read}
    policy = packer.unpack(NETWORK_POLICIES, packer.pack(NETWORK_POLICIES, body))
    assert policy["metadata"]["annotations"] == {"a": "b", **read}
    assert "managedFields" in body["metadata"], "the object itself is not changed"
    body["metadata"]["annotations"] = None
    assert packer.unpack(JOBS, packer.pack(JOBS, body))["metadata"]["annotations"] == {}


def test_threads_unpack_while_others_are_packed() -> None:
    packer = ObjectPacker()
    bodies = [job(number, status={"conditions": CONDITIONS}) for number in range(300)]
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(packer.unpack, JOBS, packer.pack(JOBS, body)) for body in bodies]
    assert [one.result() for one in found] == bodies
