"""The RayJob of a job and its pods: what KubeRay, schedulers and device plug-ins depend on."""

import json

import pytest
from pydantic import ValidationError

from control.api import job_documents
from control.plan.rendered_objects import SETTINGS, SPEC, by_kind, env, make_job, pod, ray_job, workers
from e2e.random_documents import jobs
from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import (
    CHECKSUM_ANNOTATION,
    PODS_ANNOTATION,
    RENDERED_ANNOTATION,
    SPEC_ANNOTATION,
    report_audience,
)
from omni_operator.plan.digest import compute_digest


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    """The API server returns keys in another order than the operator renders them."""
    written = {"a": {"b": 1, "c": [2]}, "d": 3}
    returned = {"d": 3, "a": {"c": [2], "b": 1}}
    assert compute_digest(written) == compute_digest(returned) != compute_digest({**written, "d": 4})


def test_the_digest_is_that_of_the_pods_and_leaves_out_the_job_file() -> None:
    digests = {
        ray_job(make_job(*change))["metadata"]["annotations"][RENDERED_ANNOTATION]
        for change in ((), ("spec.ttlSecondsAfterFinished=7",), ("spec.suspend=true",))
    }
    assert len(digests) == 1
    changed = ray_job(make_job("spec.trainer.totalSteps=11"))
    assert changed["metadata"]["annotations"][RENDERED_ANNOTATION] not in digests


def test_ascend_pods_bind_to_the_pod_address_and_presets_can_be_overridden() -> None:
    ascend = "spec.trainer.accelerator={vendor: Ascend, preset: Atlas-A2}"
    group = workers(make_job(ascend))
    assert env(group)["HCCL_IF_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert pod(group)["runtimeClassName"] == "ascend"
    assert pod(group)["nodeSelector"] == {"accelerator-type": "module-910b-8"}
    assert group["template"]["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910b"
    overridden = workers(
        make_job(
            ascend,
            "spec.trainer.accelerator.runtimeClassName=mine",
            "spec.scheduling.nodeSelector={accelerator-type: module-a3-16}",
            "spec.trainer.podTemplate={spec: {containers: [{name: ray, env: [{name: HCCL_SOCKET_IFNAME, value: e}]}]}}",
        )
    )
    assert pod(overridden)["runtimeClassName"] == "mine"
    assert pod(overridden)["nodeSelector"] == {"accelerator-type": "module-a3-16"}
    assert env(overridden)["HCCL_SOCKET_IFNAME"] == "e"


def test_ray_has_a_logical_cpu_for_every_actor() -> None:
    crowd = make_job("spec.rollout.agentLoop.workers=32", "spec.trainer.resources.requests={cpu: 100m}")
    assert int(workers(crowd)["resources"]["CPU"]) >= 32 + 4
    assert workers(make_job())["resources"]["CPU"] == "16"


def test_only_scheduler_labels_are_copied_to_the_rayjob() -> None:
    labels = {
        "kueue.x-k8s.io/queue-name": "team",
        "volcano.sh/queue-name": "q",
        "kai.scheduler/queue": "k",
        "yunikorn.apache.org/queue": "y",
        "ray.io/scheduler-name": "volcano",
        "ray.io/gang-scheduling-enabled": "true",
        "team": "mine",
        "ray.io/cluster": "forged",
        "diffusionrl.io/job": "forged",
    }
    annotations = {"kueue.x-k8s.io/elastic-job": "true", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    job = make_job(f"metadata.labels={json.dumps(labels)}", f"metadata.annotations={json.dumps(annotations)}")
    metadata = ray_job(job)["metadata"]
    of_operator = {
        "app.kubernetes.io/managed-by": "omni-operator",
        "diffusionrl.io/job": "a-job",
        "diffusionrl.io/attempt": "1",
    }
    assert metadata["labels"] == {**dict(list(labels.items())[:6]), **of_operator}
    assert set(metadata["annotations"]) == {
        "kueue.x-k8s.io/elastic-job",
        "ray.io/disable-provisioned-head-restart",
        RENDERED_ANNOTATION,
        PODS_ANNOTATION,
        SPEC_ANNOTATION,
        CHECKSUM_ANNOTATION,
    }


def test_each_group_of_pods_has_its_own_topology_and_annotations() -> None:
    groups = {"head": "spec.head", "trainer": "spec.trainer", "rollout": "spec.rollout"}
    job = make_job(
        "spec.rollout={placement: Separate, replicas: 2}",
        "spec.scheduling.topology.preferred=rack",
        "spec.rollout.scheduling.topology.required=block",
        *(f"{path}.podTemplate.metadata.annotations={{example.com/group: {name}}}" for name, path in groups.items()),
    )
    cluster = ray_job(job)["spec"]["rayClusterSpec"]
    trainer, rollout = cluster["workerGroupSpecs"]
    annotations_of_groups = [
        group["template"]["metadata"]["annotations"] for group in (cluster["headGroupSpec"], trainer, rollout)
    ]
    assert [annotations["example.com/group"] for annotations in annotations_of_groups] == [*groups]
    topology = [
        {name: level for name, level in of_group.items() if name.endswith("-topology")}
        for of_group in annotations_of_groups
    ]
    assert topology == [
        {},
        {"kueue.x-k8s.io/podset-preferred-topology": "rack"},
        {"kueue.x-k8s.io/podset-required-topology": "block"},
    ]


def test_the_report_token_is_valid_for_this_job_only() -> None:
    group = workers(make_job("metadata.namespace=team"))
    (volume,) = [entry for entry in pod(group)["volumes"] if entry["name"] == "report-token"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == report_audience("team", "a-job")
    assert env(group)["DIFFUSIONRL_REPORT_URL"] == "http://operator.ns:8081/v1/reports"
    assert env(group)["DIFFUSIONRL_REPORT_TOKEN_FILE"] == "/var/run/secrets/diffusionrl.io/report/token"
    quiet = ray_job(make_job(), plan.ClusterSettings(image="i"))
    assert "report" not in json.dumps(quiet).lower()
    assert pod(group)["automountServiceAccountToken"] is False


def test_a_pod_template_cannot_change_what_the_operator_depends_on() -> None:
    template = {
        "metadata": {"labels": {"mine": "yes"}},
        "spec": {
            "restartPolicy": "Always",
            "containers": [{"name": "first", "image": "x"}, {"name": "ray", "tty": True}],
        },
    }
    job = make_job(f"spec.head.podTemplate={json.dumps(template)}", f"spec.trainer.podTemplate={json.dumps(template)}")
    for group in (ray_job(job)["spec"]["rayClusterSpec"]["headGroupSpec"], workers(job)):
        labels = group["template"]["metadata"]["labels"]
        assert (labels["diffusionrl.io/job"], labels["mine"]) == ("a-job", "yes")
        assert [container["name"] for container in pod(group)["containers"]] == ["ray", "first"]
        assert pod(group)["containers"][0]["tty"] is True
        assert pod(group)["restartPolicy"] == "Never"


def test_every_container_has_requests_and_the_limits_of_the_job() -> None:
    resources = "{requests: {cpu: '3', memory: 5Gi}, limits: {memory: 5Gi, rdma/hca: '1'}}"
    job = make_job(
        "spec.model.base=a/b", f"spec.trainer.resources={resources}", "spec.trainer.accelerator.vendor=NVIDIA"
    )
    cluster = by_kind(job)["RayJob"]["spec"]["rayClusterSpec"]
    (worker,) = cluster["workerGroupSpecs"]
    (fetch,) = pod(worker)["initContainers"]
    assert fetch["resources"] == {"requests": {"cpu": "3", "memory": "7Gi"}, "limits": {"memory": "7Gi"}}
    for group in (cluster["headGroupSpec"], worker):
        for container in (*pod(group)["containers"], *pod(group).get("initContainers", ())):
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), container["name"]


@pytest.mark.parametrize("attempt", [1, 99])
def test_rendering_is_deterministic(attempt: int) -> None:
    rendered = 0
    for document in jobs(attempt, 80, SPEC, job_documents):
        try:
            job = DiffusionRLJob.model_validate(document)
        except ValidationError:
            continue
        rendered += 1
        bodies = plan.render_objects(job, attempt, SETTINGS)
        assert plan.dump_yaml(*bodies) == plan.dump_yaml(*plan.render_objects(job, attempt, SETTINGS))
        assert len({(body["kind"], body["metadata"]["name"]) for body in bodies}) == len(bodies)
        for body in bodies:
            annotations = body["metadata"]["annotations"]
            marked = annotations.pop(RENDERED_ANNOTATION)
            if body["metadata"]["annotations"] == {}:
                assert (
                    compute_digest(
                        {**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "annotations"}}
                    )
                    == marked
                )
        cluster = bodies[-1]["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            assert pod(group)["restartPolicy"] == "Never"
            assert pod(group)["containers"][0]["name"] == "ray"
    assert rendered > 5
