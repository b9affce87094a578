"""The models and the CRD on a real API server accept and refuse the same documents, and the rules for updates hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import install
from e2e.verdicts import compare, load, random_jobs
from omni_operator.api import DiffusionRLJob

pytestmark = pytest.mark.cluster

DOCUMENTS = Path(__file__).parents[2] / "tests" / "control" / "api" / "job_documents.py"
INVALID = {400, 422}
RANDOM = 500  # `python -m e2e.verdicts` compares more


documents = load(DOCUMENTS)


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    install(plane, kuberay=False)
    with plane.api("e2e-verdicts") as client:
        yield client


def accepted_by_models(document: dict[str, Any]) -> bool:
    try:
        DiffusionRLJob.model_validate(document)
    except ValidationError:
        return False
    return True


def accepted_by_server(api: Api, document: dict[str, Any]) -> tuple[bool, str]:
    try:
        api.post(
            "/apis/diffusionrl.io/v1alpha1/namespaces/default/diffusionrljobs?dryRun=All&fieldValidation=Strict",
            document,
        )
    except ApiError as error:
        assert error.code in INVALID, f"neither accepted nor refused: {error}"
        return False, str(error)
    return True, "accepted"


def test_fixed_documents(api: Api) -> None:
    cases = documents.cases()
    verdicts = [(accepted_by_models(case), accepted_by_server(api, case), case) for case in cases]
    assert [(case, message) for models, (server, message), case in verdicts if models != server] == []
    accepted = sum(models for models, _, _ in verdicts)
    assert 20 <= accepted <= len(cases) - 20, "both verdicts are there"


def test_drl_validate_and_the_cluster_agree_on_random_documents(api: Api) -> None:
    differences, accepted = compare(api, random_jobs(seed=1, count=RANDOM))
    assert differences == []
    assert RANDOM / 10 < accepted < RANDOM * 9 / 10, "both verdicts are there"


def test_a_rule_of_the_crd_has_a_message(api: Api) -> None:
    _, text = accepted_by_server(api, {**documents.SMALLEST, "spec": {**documents.SMALLEST["spec"], "backoffLimit": 1}})
    assert "checkpoint" in text


def test_one_answer_names_all_broken_rules_with_the_paths_of_their_fields(api: Api) -> None:
    """Also those that the API server evaluates as one."""
    wrong = {"backoffLimit": 1, "rollout": {"samplesPerPrompt": 1, "drainSeconds": 1, "minReplicas": 1, "replicas": 2}}
    _, message = accepted_by_server(api, {**documents.SMALLEST, "spec": {**documents.SMALLEST["spec"], **wrong}})
    for field, text in (
        ("backoffLimit", "needs spec.checkpoint.claimName"),
        ("rollout.replicas", "must be all accelerators"),
        ("rollout.samplesPerPrompt", "must be at least 2"),
        ("rollout.drainSeconds", "must not be given"),
        ("rollout.minReplicas", "must not be given"),
    ):
        assert f"spec.{field}: {text}" in message
    assert "trainer.batch" not in message
