"""Pod templates are checked against the schema of KubeRay's RayJob before anything is created."""

import json
from typing import Any

import pytest

from control.plan.rendered_objects import make_job
from omni_operator import plan
from omni_operator.api import JobError
from omni_operator.api.spec.pod_schema import find_errors
from omni_operator.api.validation_messages import format_path


@pytest.mark.parametrize(
    ("spec", "at", "said"),
    [
        (
            {"containers": [{"name": "ray", "env": [{"name": "A", "value": 3}]}]},
            ".containers[0].env[0].value",
            "must be a string, not 3: write it in quotes",
        ),
        ({"containers": [{"name": "ray", "prots": []}]}, ".containers[0].prots", "did you mean 'ports'?"),
        (
            {"containers": [{"name": "ray", "resources": {"limits": {"cpu": 1.5}}}]},
            ".containers[0].resources.limits.cpu",
            "must be a whole number or a string",
        ),
        (
            {"containers": [{"name": "ray", "resources": {"limits": {"memory": "4 Gi"}}}]},
            ".containers[0].resources.limits.memory",
            "is not a quantity",
        ),
        (
            {
                "containers": [
                    {"name": "ray", "ports": [{"containerPort": 9}, {"containerPort": 9.0, "protocol": "TCP"}]}
                ]
            },
            ".containers[0].ports[1]",
            "is in the list already",
        ),
        ({"tolerations": [{"tolerationSeconds": 2**70}]}, ".tolerations[0].tolerationSeconds", "of 64 bits"),
        ({"priority": 2**31}, ".priority", "of 32 bits"),
        ({"hostIPC": "true"}, ".hostIPC", "must be true or false"),
        ({"nodeSelector": []}, ".nodeSelector", "must be a mapping"),
        ({"imagePullSecrets": [None]}, ".imagePullSecrets[0]", "must be a mapping"),
    ],
)
def test_a_malformed_field_is_named(spec: Any, at: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        make_job(f"spec.trainer.podTemplate={json.dumps({'spec': spec})}")
    (problem,) = caught.value.problems
    assert problem.field == f"spec.trainer.podTemplate.spec{at}"
    assert said in problem.text


def test_nulls_and_whole_numbers_as_floats_are_accepted() -> None:
    template = {"spec": {"priority": 3.0, "hostname": None, "containers": [{"name": "ray", "ports": None}]}}
    job = make_job(f"spec.trainer.podTemplate={json.dumps(template)}")
    assert plan.find_refusals(job, plan.ClusterSettings(image="i")) == []


@pytest.mark.parametrize(
    ("template", "at", "said"),
    [
        (
            {"containers": [{"name": "ray", "volumeMounts": [{"mountPath": "/x"}]}]},
            "spec.head.podTemplate.spec.containers[0].volumeMounts[0]",
            "name must be given",
        ),
        (
            {"tolerations": [{}], "topologySpreadConstraints": [{"topologyKey": "a"}]},
            "spec.head.podTemplate.spec.topologySpreadConstraints[0]",
            "maxSkew must be given",
        ),
    ],
)
def test_required_fields_may_come_from_the_operators_template(template: Any, at: str, said: str) -> None:
    """The mount of /dev/shm has its name from the operator; another mount needs one."""
    refusals = plan.find_refusals(
        make_job(f"spec.head.podTemplate={json.dumps({'spec': template})}"), plan.ClusterSettings(image="i")
    )
    assert (format_path(refusals[0].at), refusals[0].text) == (at, said)
    mount = {"containers": [{"name": "ray", "volumeMounts": [{"mountPath": "/dev/shm", "readOnly": False}]}]}
    job = make_job(f"spec.head.podTemplate={json.dumps({'spec': mount})}")
    assert plan.find_refusals(job, plan.ClusterSettings(image="i")) == []


def test_labels_of_pods_are_labels() -> None:
    for labels in ({"a b": "c"}, {"a": "b c"}, {"A/b": "c"}, {"a": "b" * 64}, {"x/" + "a" * 64: "b"}):
        with pytest.raises(JobError, match="label"):
            make_job(f"spec.head.podTemplate={json.dumps({'metadata': {'labels': labels}})}")


def test_the_operators_own_templates_are_complete() -> None:
    job = make_job("spec.model.base=a/b", "spec.trainer.accelerator.vendor=NVIDIA")
    rayjob = plan.render_objects(job, 1, plan.ClusterSettings(image="i", report_url="http://r"))[-1]
    cluster = rayjob["spec"]["rayClusterSpec"]
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
    texts = [refusal.text for refusal in plan.find_refusals(job, plan.ClusterSettings(image="i"))]
    wanted = ("no container mounts 'c'", "wandb needs an API key")
    assert len(texts) == 2
    assert all(part in text for part, text in zip(wanted, texts, strict=True)), texts
    assert not job.spec.keeps_results
