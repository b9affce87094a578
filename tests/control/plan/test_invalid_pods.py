"""Pods that the API server would refuse when KubeRay creates them are refused before, with the field of the job."""

import json
from typing import Any

import pytest

from control.plan.pod_mistakes import MISTAKES, RIGHT, mounted
from control.plan.rendered_objects import make_job, refusals
from omni_operator.api.spec.pod_schema import TOLD

NVIDIA = "spec.trainer.accelerator={vendor: NVIDIA}"


def assigned(fields: dict[str, Any], role: str = "trainer") -> list[str]:
    return [f"spec.{role}.{name}={json.dumps(value)}" for name, value in fields.items()]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_refusal_with_the_field_of_the_author(name: str) -> None:
    fields, path, words = MISTAKES[name]
    (refusal,) = refusals(make_job(NVIDIA, *assigned(fields)))
    assert refusal.startswith(f"spec.trainer.{path}: {words}")


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_refused(name: str) -> None:
    assert refusals(make_job(NVIDIA, *assigned(RIGHT[name]))) == []


@pytest.mark.parametrize("role", ["head", "rollout", "reward.model", "reward.scorers[0].pool"])
def test_the_pods_of_every_pool_are_checked(role: str) -> None:
    pools = [
        "spec.rollout={placement: Separate, replicas: 1}",
        "spec.reward.model={base: ./judge, placement: Separate}",
        "spec.reward.scorers=[{name: jpeg, pool: {}}, {name: color, settings: {color: red}}]",
    ]
    fields = {"resources": {"requests": {"gpu": "1"}}, **mounted("weights")}
    resource, mount = refusals(make_job(NVIDIA, *pools, *assigned(fields, role)))
    assert resource.startswith(f"spec.{role}.resources.requests.gpu: containers have no resource 'gpu'")
    assert mount.startswith(f"spec.{role}.podTemplate.spec.containers[0].volumeMounts[0].name: the pod has no volume")


def test_a_mount_that_a_download_shares_is_refused_once() -> None:
    (refusal,) = refusals(make_job("spec.model.base=a/b", *assigned(mounted("weights"))))
    assert refusal.startswith("spec.trainer.podTemplate.spec.containers[0].volumeMounts[0].name")


def test_one_hundred_mistakes_of_a_template_are_told() -> None:
    mounts = [{"name": "weights", "mountPath": f"/w{number}"} for number in range(2 * TOLD)]
    fields = {"podTemplate": {"spec": {"containers": [{"name": "ray", "volumeMounts": mounts}]}}}
    assert len(refusals(make_job(*assigned(fields)))) == TOLD


def test_a_mount_without_a_name_is_one_error() -> None:
    fields = {"podTemplate": {"spec": {"containers": [{"name": "ray", "volumeMounts": [{"mountPath": "/w"}]}]}}}
    (refusal,) = refusals(make_job(*assigned(fields)))
    assert refusal == "spec.trainer.podTemplate.spec.containers[0].volumeMounts[0]: name must be given"
