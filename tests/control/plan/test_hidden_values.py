"""Secrets that a job has as values of variables are not in the copy that the run folder, and so the report, gets."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from control.plan.rendered_objects import make_job
from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.api.names import JOB_ANNOTATION
from omni_operator.cli.local import run_folder

HIDDEN = {
    "HF_TOKEN": "hidden-1",
    "WANDB_API_KEY": "hidden-2",
    "AWS_SECRET_ACCESS_KEY": "hidden-3",
    "mlflow_tracking_password": "hidden-4",
    "HTTPS_PROXY": "http://ann:hidden-5@proxy:8080",
    "GIT_CREDENTIALS": "hidden-6",
}
SHOWN = {
    "TOKENIZERS_PARALLELISM": "shown-1",
    "HF_ENDPOINT": "https://hub.example.com/shown@2",
    "MONKEY": "shown-3",
    "KEYBOARD": "shown-4",
    "NCCL_DEBUG": "shown-5",
}
ENV = [{"name": name, "value": value} for name, value in {**HIDDEN, **SHOWN}.items()]
FROM = {"name": "TOKEN_OF_A_SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
TEMPLATE = json.dumps(
    {
        "spec": {
            "containers": [{"name": "ray", "env": [*ENV, FROM]}],
            "initContainers": [{"name": "a", "image": "i", "env": ENV}],
        }
    }
)


def check(text: str, roles: int) -> None:
    assert "hidden-" not in text
    assert text.count("(hidden)") == 2 * roles * len(HIDDEN)
    assert text.count("secretKeyRef") == roles
    for name, value in SHOWN.items():
        assert text.count(value) >= 2 * roles, name


@pytest.mark.parametrize("role", ["head", "trainer", "rollout", "reward.model"])
def test_the_job_in_the_pods_has_no_secrets_and_the_variables_do(role: str) -> None:
    job = make_job(
        "spec.rollout.placement=Separate",
        "spec.reward.model.base=./judge",
        "spec.reward.model.placement=Separate",
        f"spec.{role}.podTemplate={TEMPLATE}",
    )
    attempt = plan.render_attempt(job, 1, plan.ClusterSettings(image="i"))
    cluster = attempt["spec"]["rayClusterSpec"]
    trainer, *_ = cluster["workerGroupSpecs"]
    check(trainer["template"]["metadata"]["annotations"].pop(JOB_ANNOTATION), 1)
    assert all(value in json.dumps(cluster) for value in HIDDEN.values()), "the pods have them"


def test_the_job_in_a_local_run_folder_has_no_secrets(tmp_path: Path) -> None:
    job = make_job(f"spec.trainer.podTemplate={TEMPLATE}")
    file = tmp_path / "job.yaml"
    document = {
        "apiVersion": job.api_version,
        "kind": "DiffusionRLJob",
        "metadata": {"name": "red"},
        "spec": job.spec.model_dump(by_alias=True, mode="json", exclude_defaults=True),
    }
    with file.open("w") as opened:
        YAML().dump(document, opened)
    loaded = load_job(file)
    run_folder.prepare(tmp_path / "red", job, loaded.document, lambda _: [], fresh=False)
    check((tmp_path / "red" / "job.yaml").read_text(), 1)
    assert load_job(tmp_path / "red" / "job.yaml").job.spec.trainer.pod_template
