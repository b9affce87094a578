"""Pod templates are checked against the schema of KubeRay's RayJob before anything is created."""

import json
from typing import Any

import pytest

from control.plan.rendered_objects import make_job, ray, ray_job, refusals
from omni_operator.api import JobError
from omni_operator.api.spec.pod_schema import find_errors

RAY = ".containers[0]"
TCP_9 = {"containerPort": 9.0, "protocol": "TCP"}


@pytest.mark.parametrize(
    ("spec", "at", "message"),
    [
        (ray(env=[{"name": "A", "value": 3}]), f"{RAY}.env[0].value", "must be a string, not 3: write it in quotes"),
        (ray(prots=[]), f"{RAY}.prots", "did you mean 'ports'?"),
        (ray(resources={"limits": {"cpu": 1.5}}), f"{RAY}.resources.limits.cpu", "must be a whole number or a string"),
        (ray(resources={"limits": {"memory": "4 Gi"}}), f"{RAY}.resources.limits.memory", "is not a quantity"),
        (ray(ports=[{"containerPort": 9}, TCP_9]), f"{RAY}.ports[1]", "is in the list already"),
        ({"tolerations": [{"tolerationSeconds": 2**70}]}, ".tolerations[0].tolerationSeconds", "of 64 bits"),
        ({"priority": 2**31}, ".priority", "of 32 bits"),
        ({"hostIPC": "true"}, ".hostIPC", "must be true or false"),
        ({"nodeSelector": []}, ".nodeSelector", "must be a mapping"),
        ({"imagePullSecrets": [None]}, ".imagePullSecrets[0]", "must be a mapping"),
    ],
)
def test_a_malformed_field_is_named(spec: Any, at: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        make_job(f"spec.trainer.podTemplate={json.dumps({'spec': spec})}")
    (problem,) = caught.value.problems
    assert problem.field == f"spec.trainer.podTemplate.spec{at}"
    assert message in problem.text


def test_nulls_and_whole_numbers_as_floats_are_accepted() -> None:
    template = {"spec": {"priority": 3.0, "hostname": None, **ray(ports=None)}}
    assert refusals(make_job(f"spec.trainer.podTemplate={json.dumps(template)}")) == []


@pytest.mark.parametrize(
    ("template", "at", "message"),
    [
        (ray(volumeMounts=[{"mountPath": "/x"}]), f"{RAY}.volumeMounts[0]", "name must be given"),
        (
            {"tolerations": [{}], "topologySpreadConstraints": [{"topologyKey": "a"}]},
            ".topologySpreadConstraints[0]",
            "maxSkew must be given",
        ),
    ],
)
def test_required_fields_may_come_from_the_operators_template(template: Any, at: str, message: str) -> None:
    """The mount of /dev/shm has its name from the operator; another mount needs one."""
    first, *_ = refusals(make_job(f"spec.head.podTemplate={json.dumps({'spec': template})}"))
    assert first == f"spec.head.podTemplate.spec{at}: {message}"
    mount = ray(volumeMounts=[{"mountPath": "/dev/shm", "readOnly": False}])
    assert refusals(make_job(f"spec.head.podTemplate={json.dumps({'spec': mount})}")) == []


def test_labels_of_pods_are_labels() -> None:
    for labels in ({"a b": "c"}, {"a": "b c"}, {"A/b": "c"}, {"a": "b" * 64}, {"x/" + "a" * 64: "b"}):
        with pytest.raises(JobError, match="label"):
            make_job(f"spec.head.podTemplate={json.dumps({'metadata': {'labels': labels}})}")


def test_the_operators_own_templates_are_complete() -> None:
    job = make_job("spec.model.base=a/b", "spec.trainer.accelerator.vendor=NVIDIA")
    cluster = ray_job(job)["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert list(find_errors(group["template"], complete=True)) == []


def test_nulls_and_missing_names_do_not_stop_the_checks() -> None:
    claim = {"name": "c", "persistentVolumeClaim": {"claimName": "c"}}
    container = {"name": "ray", "env": None, "volumeMounts": [{"mountPath": "/x"}], "securityContext": None}
    template = {"spec": {"containers": [container], "initContainers": None, "volumes": [claim]}, "metadata": None}
    job = make_job(
        f"spec.trainer.podTemplate={json.dumps(template)}",
        "spec.checkpoint.path=/x",
        "spec.observability.tracking={loggers: [wandb]}",
    )
    texts = refusals(job)
    wanted = ("no container mounts 'c'", "wandb needs an API key")
    assert len(texts) == 2
    assert all(part in text for part, text in zip(wanted, texts, strict=True)), texts
    assert not job.spec.keeps_results
