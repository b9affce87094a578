"""Tests of the metadata of a file: what the API server would refuse in it, `drl validate` refuses with field and line.

`e2e/suites/test_job_verdicts.py` compares all fields with an API server.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_operator.api import DiffusionRLJob, JobError, read_job

SPEC = {
    "model": {"base": "./model"},
    "data": {"train": ["train.jsonl"]},
    "reward": {"scorers": [{"name": "jpeg"}]},
    "trainer": {"totalSteps": 3},
}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}


def document(**metadata: Any) -> dict[str, Any]:
    kind = {"apiVersion": "diffusionrl.io/v1alpha1", "kind": "DiffusionRLJob"}
    return {**kind, "metadata": {"name": "a-job", **metadata}, "spec": SPEC}


def problems(**metadata: Any) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        read_job(json.dumps(document(**metadata)), "job.yaml")
    return {problem.field.removeprefix("metadata."): problem.text for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("field", "value", "at", "said"),
    [
        ("labelz", {}, "labelz", "did you mean 'labels'?"),
        ("unknown", None, "unknown", "unknown field; valid fields: name, "),
        ("creationTimestamp", "2026-02-31T00:00:00Z", "creationTimestamp", "is not a time such as"),
        ("deletionGracePeriodSeconds", 1.5, "deletionGracePeriodSeconds", "must be a whole number"),
        ("namespace", "A b", "namespace", "has the wrong format"),
        ("generateName", "A b", "generateName", "is not the beginning of a name"),
        ("finalizers", ["a.b/c", "a b"], "finalizers[1]", "is not a finalizer"),
        ("finalizers", ["orphan", "foregroundDeletion"], "finalizers", "exclude each other"),
        ("ownerReferences", [{**OWNER, "uid": None}], "ownerReferences[0].uid", "must be given"),
        ("ownerReferences", [{**OWNER, "x": 1}], "ownerReferences[0].x", "unknown field"),
        ("ownerReferences", [{**OWNER, "controller": True}] * 2, "ownerReferences", "only one of them"),
        ("ownerReferences", [OWNER, {**OWNER, "kind": "Event"}], "ownerReferences[1]", "owns nothing"),
        ("managedFields", [{"time": "x"}], "managedFields[0].time", "is not a time"),
    ],
)
def test_metadata_that_the_api_server_would_refuse_is_named(field: str, value: Any, at: str, said: str) -> None:
    found = problems(**{field: value})
    assert list(found) == [at]
    assert said in found[at]


def test_a_wrong_value_has_one_message_also_where_the_operator_reads_it_too() -> None:
    assert problems(uid=1, labels={"a b": "c"}, foo=1).keys() == {"uid", "foo"}
    assert problems(finalizers=[1]) == {"finalizers[0]": "must be a string, not 1"}


def test_without_a_name_the_message_says_who_makes_one() -> None:
    made = document(generateName="a-")
    del made["metadata"]["name"]
    with pytest.raises(JobError) as caught:
        read_job(json.dumps(made), "job.yaml")
    texts = {problem.field: problem.text for problem in caught.value.problems}
    assert "must be given" in texts["metadata.name"]
    assert "kubectl create" in texts["metadata.generateName"]


def test_what_a_cluster_adds_is_accepted_in_a_file() -> None:
    added = {
        "uid": "u",
        "generation": 3.0,
        "resourceVersion": "7",
        "selfLink": "",
        "deletionGracePeriodSeconds": None,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": None,
        "generateName": "a-",
        "finalizers": ["example.com/keep"],
        "ownerReferences": [{**OWNER, "controller": None}],
        "managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {}}, "subresource": ""}],
        "annotations": {"a": "\ud800"},
    }
    assert read_job(json.dumps(document(**added)), "job.yaml").job.metadata.generation == 3


def test_the_operator_reads_metadata_with_fields_of_a_later_kubernetes() -> None:
    assert DiffusionRLJob.model_validate(document(later={"x": 1}, finalizers=["no finalizer"])).metadata.name == "a-job"
