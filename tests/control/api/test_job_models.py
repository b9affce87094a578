"""Tests of the models of spec and status, with written and drawn documents."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from control.api import job_documents
from control.api.small_job import GOOD
from e2e.random_documents import jobs
from omni_operator.api import DiffusionRLJob, JobError, read_job
from omni_operator.api.crd import definition
from omni_operator.api.names import RAYJOB_NAME_LIMIT, Names, job_of_raycluster, job_of_rayjob, report_audience
from omni_operator.api.status import CONDITION_TYPES, Status

SPEC = definition.schema()["properties"]["spec"]
# Changes of the smallest job, separated by &&, the field that is then wrong, and a part of the message.
REFUSED = [
    line.split("\t")
    for line in Path(__file__).with_name("refused_jobs.tsv").read_text(encoding="utf-8").splitlines()[1:]
]


def problems(*assignments: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        read_job(GOOD, "job.yaml", assignments)
    return [f"{problem.field}: {problem.text}" for problem in caught.value.problems]


@pytest.mark.parametrize(("assignments", "at", "said"), REFUSED)
def test_a_job_that_breaks_a_rule_is_refused_with_field_and_fix(assignments: str, at: str, said: str) -> None:
    (problem,) = problems(*assignments.split(" && "))
    assert problem.startswith(f"{at}: ")
    assert said in problem


def test_null_means_that_a_field_is_absent() -> None:
    job = read_job(GOOD, "job.yaml", ["spec.seed=null", "spec.rollout=null", "spec.runtime.image=null"]).job
    assert job == read_job(GOOD, "job.yaml").job
    assert problems("spec.trainer=null") == [
        "spec.trainer: must be given: pods, accelerators, training steps and learning rate"
    ]


def test_null_in_an_unknown_field_is_an_error_as_for_the_api_server() -> None:
    assert problems("spec.trainer.totalStep=null")[0].startswith("spec.trainer.totalStep: unknown field")


def test_a_whole_number_may_be_written_as_a_float() -> None:
    floats = ["spec.seed=3.0", "spec.trainer.batch.prompts=4.0"]
    job = read_job(GOOD, "job.yaml", [*floats, "spec.reward.scorers=[{name: jpeg, settings: {quality: 90.0}}]"]).job
    assert (job.spec.seed, job.spec.trainer.batch.prompts) == (3, 4)
    assert type(job.spec.seed) is int
    assert problems("spec.seed=3.5") == ["spec.seed: must be a whole number, not 3.5"]
    assert problems("spec.seed=1e300") == ["spec.seed: must be a whole number, not 1e+300"]


@pytest.mark.parametrize(
    ("metadata", "at"),
    [
        ("labels={a b: c}", "metadata.labels.a b"),
        ("labels={a: b c}", "metadata.labels.a"),
        ("labels={A.b/c: d}", "metadata.labels.A.b/c"),
        ("annotations={a/b/c: d}", "metadata.annotations.a/b/c"),
        (f"annotations={{a: {'x' * 2**18}}}", "metadata.annotations"),
    ],
)
def test_labels_and_annotations_are_checked_as_by_the_api_server(metadata: str, at: str) -> None:
    (problem,) = problems(f"metadata.{metadata}")
    assert problem.startswith(f"{at}: ")
    job = read_job(GOOD, "job.yaml", ["metadata.labels={a.b/C_d: null}", "metadata.annotations={A.b/C: d e}"]).job
    assert job.metadata.labels == {"a.b/C_d": ""}


def test_unknown_fields_of_metadata_and_status_are_ignored() -> None:
    document = {
        "apiVersion": "diffusionrl.io/v1alpha1",
        "kind": "DiffusionRLJob",
        "metadata": {
            "name": "a",
            "namespace": "n",
            "uid": "u",
            "generation": 3,
            "finalizers": ["x/y"],
            "managedFields": [{}],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": None,
        },
        "spec": json.loads(json.dumps(read_job(GOOD, "j").document.plain()["spec"])),
        "status": {
            "observedGeneration": 2,
            "attempts": 1,
            "newField": 1,
            "weights": None,
            "conditions": [{"type": "Succeeded", "status": "True", "reason": "Done", "x": 1}],
            "children": {"rayJob": "a-a01", "dashboardURL": "http://d"},
        },
    }
    job = DiffusionRLJob.model_validate(document)
    assert (job.metadata.generation, job.metadata.uid, job.metadata.finalizers) == (3, "u", ("x/y",))
    assert job.status.finished
    assert job.status.children.dashboard_url == "http://d"
    assert (job.status.condition("Ready"), job.status.is_true("Succeeded")) == (None, True)


def test_the_written_status_matches_the_crd() -> None:
    schema = definition.schema()["properties"]["status"]
    assert set(schema["properties"]) == {field.alias for field in Status.model_fields.values()}
    written = Status(attempts=2).model_dump(exclude_none=True, exclude_defaults=True)
    assert written == {"attempts": 2}
    assert len(CONDITION_TYPES) == 14


def test_names_are_within_the_limits_of_kuberay() -> None:
    names = Names("j" * 43)
    assert [names.attempt(number)[43:] for number in (1, 99, 100, 2599)] == ["-a01", "-a99", "-b00", "-z99"]
    assert [Names("j" * 42).attempt(number)[42:] for number in (1, 999, 1000)] == ["-a01", "-a999", "-b000"]
    assert [Names("j" * 41).attempt(number)[41:] for number in (99, 100, 9999)] == ["-a99", "-a100", "-a9999"]
    assert Names("j").attempt(100_000) == "j-a100000"
    ends = ("-a100", "-a1", "-a001", "-a00", "-a0²", "-a01-x", "-b0", "-B00", "-b000")
    assert {names.number_of(name) for name in ("j-a01", *(f"{'j' * 43}{end}" for end in ends))} == {None}
    assert report_audience("a", "b") != report_audience("b", "a")


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,41}[a-z0-9])?", fullmatch=True), st.integers(1, 2599), st.integers(1, 2599))
def test_the_name_of_an_attempt_leads_to_its_job_and_number(job: str, number: int, other: int) -> None:
    names = Names(job)
    name = names.attempt(number)
    assert len(name) <= RAYJOB_NAME_LIMIT
    assert (job_of_rayjob(name), names.number_of(name)) == (job, number)
    assert job_of_raycluster(f"{name}-x7k2p") == job_of_raycluster(f"{name}-raycluster-k2456") == job
    assert (names.attempt(other) == name) == (other == number)


@pytest.mark.slow
def test_random_documents_are_jobs_or_explained_problems() -> None:
    accepted = 0
    for document in jobs(1, 200, SPEC, job_documents):
        try:
            job = DiffusionRLJob.model_validate(document)
        except ValidationError:
            with pytest.raises(JobError) as caught:
                read_job(json.dumps(document), "job.yaml")
            assert caught.value.problems and all(problem.text and problem.where for problem in caught.value.problems)
        else:
            accepted += 1
            again = {**document, "spec": job.spec.model_dump(by_alias=True, mode="json")}
            assert DiffusionRLJob.model_validate(again) == job
    assert 20 < accepted < 180


def test_a_status_is_sent_without_its_empty_parts_and_read_as_the_same() -> None:
    status = Status.model_validate({"attempts": 0, "children": {"rayJob": "a-a01"}, "progress": {}, "warnings": []})
    assert status.body() == {
        "attempts": 0,
        "children": {"rayJob": "a-a01"},
        "disruptionsCounted": 0,
        "failuresCounted": 0,
        "rollout": {"desired": 0, "ready": 0, "updated": 0},
        "usage": {"acceleratorSeconds": 0.0, "samples": 0},
    }
    assert Status.model_validate(status.body()) == status
