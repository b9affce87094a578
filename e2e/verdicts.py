"""`drl validate` and the API server with the operator behind it: their verdicts on random jobs, compared.

PYTHONPATH=. python -m e2e.verdicts --count 10000 --seed 1

starts a control plane, sends every document as a dry run, and prints each one on which the verdicts differ. A document
is accepted on a cluster if the API server accepts it and the operator does not refuse what the API server would store.
Where a rule of the CRD reads a whole number, the API server refuses 3.0 in JSON. kubectl sends 3, so the document is
then sent again as kubectl does.
"""

import argparse
import copy
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import control_plane
from e2e.operator_process import install
from e2e.pod_schema import pod_template
from e2e.random_documents import jobs
from omni_operator import plan
from omni_operator.api import DiffusionRLJob, JobError, read_job
from omni_operator.api.base import whole
from omni_operator.api.crd.definition import schema
from omni_operator.api.validation_messages import describe_errors, format_path

ROOT = Path(__file__).resolve().parents[1]
JOBS = "/apis/diffusionrl.io/v1alpha1/namespaces/default/diffusionrljobs?dryRun=All&fieldValidation=Strict"
INVALID = {400, 422}
FLOAT = "expected int, got float64"
SETTINGS = plan.ClusterSettings(image="rollout:1")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A document with two verdicts; None is acceptance."""

    document: Document
    local: str | None
    cluster: str | None


def random_jobs(seed: int, count: int) -> Iterator[Document]:
    """Jobs with a few changes: those that are written down for the tests, and random ones."""
    spec = _with_pods(schema()["properties"]["spec"], pod_template())
    return jobs(seed, count, spec, load(ROOT / "tests" / "control" / "api" / "job_documents.py"))


def _with_pods(given: Document, pods: Document) -> Document:
    """The schema of a job with the full schema of pods, so that documents have every field of pods."""
    extended = copy.deepcopy(given)
    fields = extended["properties"]
    for pool in (fields["head"], fields["trainer"], fields["rollout"], fields["reward"]["properties"]["model"]):
        pool["properties"]["podTemplate"] = pods
    return extended


def load(path: Path) -> ModuleType:
    """A module of the tests, by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge_locally(document: Document) -> str | None:
    """Why `drl validate --cluster` refuses a document; None if it does not."""
    try:
        job = read_job(json.dumps(document), "job.yaml").job
    except JobError as error:
        return str(error)
    return _refusals(job)


def judge_on_the_cluster(api: Api, document: Document) -> str | None:
    """Why the API server or the operator refuses a document; None if neither does.

    Raises:
        ApiError: the API server neither accepts the document nor calls it invalid.
    """
    try:
        try:
            stored = api.post(JOBS, document)
        except ApiError as error:
            if FLOAT not in str(error):
                raise
            stored = api.post(JOBS, _as_kubectl(document))
    except ApiError as error:
        if error.code not in INVALID:
            raise
        return f"the API server: {error}"
    try:
        job = DiffusionRLJob.model_validate({**stored, "status": {}})
    except ValidationError as error:
        problems = "; ".join(f"{format_path(at)}: {text}" for at, text in describe_errors(error, DiffusionRLJob))
        return f"the operator: {problems}"
    refusals = _refusals(job)
    return refusals and f"the operator: {refusals}"


def _as_kubectl(value: Any) -> Any:
    """The value as kubectl reads YAML: a float without a fraction is sent as an integer."""
    match value:
        case dict():
            return {name: _as_kubectl(item) for name, item in value.items()}
        case list():
            return [_as_kubectl(item) for item in value]
        case _:
            return whole(value)


def _refusals(job: DiffusionRLJob) -> str | None:
    return (
        "; ".join(f"{format_path(refusal.at)}: {refusal.text}" for refusal in plan.find_refusals(job, SETTINGS)) or None
    )


def compare(api: Api, documents: Iterator[Document]) -> tuple[list[Difference], int]:
    """The documents on which the verdicts differ, and how many both accept."""
    differences = []
    accepted = 0
    for document in documents:
        local = judge_locally(document)
        cluster = judge_on_the_cluster(api, document)
        accepted += local is None and cluster is None
        if (local is None) != (cluster is None):
            differences.append(Difference(document, local, cluster))
    return differences, accepted


def main() -> int:
    """Compare the verdicts; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.verdicts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="number of documents")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with control_plane() as plane, plane.api("e2e-verdicts") as api:
        install(plane, kuberay=False)
        differences, accepted = compare(api, random_jobs(options.seed, options.count))
    for mismatch in differences:
        sys.stdout.write(
            f"{json.dumps({'document': mismatch.document, 'local': mismatch.local, 'cluster': mismatch.cluster})}\n"
        )
    sys.stderr.write(f"{options.count} documents, {accepted} accepted by both, {len(differences)} verdicts differ\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
