"""Tests of the metadata of a file: a misspelt field is named, and what a cluster adds is accepted."""

from typing import Any

import pytest

from control.api.small_job import GOOD, problems
from omni_operator.api import DiffusionRLJob, read_job

ADDED = """\
  uid: u
  generation: 3.0
  selfLink: ""
  deletionTimestamp: null
  finalizers: [example.com/keep]
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: a, uid: u, controller: null}]
  managedFields: [{manager: kubectl, operation: Apply, "fieldsV1": {"f:spec": {}}}]
"""


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("labelz: {}", "labelz: unknown field; did you mean 'labels'?"),
        ("zzz: null", "unknown field; valid fields: name, "),
    ],
)
def test_an_unknown_field_of_the_metadata_is_named(field: str, said: str) -> None:
    (problem,) = problems(GOOD.replace("  name: a-job\n", f"  name: a-job\n  {field}\n"))
    assert problem.startswith("job.yaml:5: metadata.") and said in problem


def test_what_a_cluster_adds_is_accepted_in_a_file() -> None:
    text = GOOD.replace("  name: a-job\n", f"  name: a-job\n{ADDED}")
    assert read_job(text, "job.yaml").job.metadata.generation == 3


def test_the_operator_reads_metadata_with_fields_of_a_later_kubernetes() -> None:
    body: dict[str, Any] = read_job(GOOD, "job.yaml").document.plain()
    body["metadata"]["later"] = {"x": 1}
    assert DiffusionRLJob.model_validate(body).metadata.name == "a-job"
