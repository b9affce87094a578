"""Scorers with a pool: worker groups of their own, pinned and counted, and the trainer's settings of them."""

from typing import Any

from control.plan.rendered_objects import SETTINGS, groups, make_job, pod_settings
from omni_operator import plan
from omni_operator.cluster.cache.job_parser import parse_job_facts
from omni_operator.cluster.cache.object_parser import parse_rayjob
from omni_operator.status.observed.observation import Attempt
from omni_operator.status.report.progress import count_accelerators

GPUS = ("spec.trainer.accelerator={vendor: NVIDIA, count: 2}", "spec.rollout.replicas=2")
ON_GPUS = "{name: pickscore, pool: {replicas: 2, accelerator: {vendor: NVIDIA, count: 3}}}"
ON_CPU = (
    "{name: my_ocr, builtin: ocr, pool: {python: envs/ocr/bin/python, "
    "podTemplate: {spec: {containers: [{name: ray, image: 'ocr:1'}]}}}}"
)
POOLS = (*GPUS, f"spec.reward.scorers=[{ON_GPUS}, {ON_CPU}, {{name: jpeg}}]")
FUNCTIONS = "reward.reward_functions."


def pools(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(FUNCTIONS): value for name, value in settings.items() if ".pool." in name}


def test_each_pool_is_a_worker_group_with_its_own_resource_accelerators_and_image() -> None:
    job = make_job(*POOLS)
    trainer, on_gpus, on_cpu = groups(job)
    assert [group["groupName"] for group in (trainer, on_gpus, on_cpu)] == [
        "trainer",
        "scorer-pickscore",
        "scorer-my-ocr",
    ]
    resources = [{name: n for name, n in group["resources"].items() if name != "CPU"} for group in (on_gpus, on_cpu)]
    assert resources == [{"GPU": "3", "omni_scorer_pickscore": "1"}, {"omni_scorer_my_ocr": "1"}]
    assert trainer["resources"]["omni_trainer"] == "1"
    assert [(group["replicas"], group["minReplicas"], group["maxReplicas"]) for group in (on_gpus, on_cpu)] == [
        (2, 2, 2),
        (1, 1, 1),
    ]
    containers = [group["template"]["spec"]["containers"][0] for group in (on_gpus, on_cpu)]
    assert [container["image"] for container in containers] == ["rollout:1", "ocr:1"]
    assert [container["resources"].get("limits") for container in containers] == [{"nvidia.com/gpu": "3"}, None]
    platforms = [{v["name"]: v.get("value") for v in container["env"]}["VERL_PLATFORM"] for container in containers]
    assert platforms == ["nvidia", "cpu"]
    assert plan.find_refusals(job, SETTINGS) == []


def test_the_trainer_pins_the_processes_of_a_pool_to_its_pods() -> None:
    settings = pod_settings(make_job(*POOLS))
    assert pools(settings) == {
        "pickscore.pool.nnodes": 2,
        "pickscore.pool.n_gpus_per_node": 3,
        "pickscore.pool.node_resource": "omni_scorer_pickscore",
        "my_ocr.pool.nnodes": 1,
        "my_ocr.pool.n_gpus_per_node": 0,
        "my_ocr.pool.node_resource": "omni_scorer_my_ocr",
        "my_ocr.pool.python": "/opt/omni/examples/envs/ocr/bin/python",
    }
    assert settings["trainer.node_resource"] == "omni_trainer"
    on_npus = make_job(
        "spec.trainer.accelerator={vendor: Ascend, count: 2}",
        "spec.rollout.replicas=2",
        f"spec.reward.scorers=[{ON_GPUS}]",
    )
    assert pools(pod_settings(on_npus))["pickscore.pool.ray_resource"] == "GPU"
    (refused,) = plan.find_refusals(on_npus, SETTINGS)
    assert refused.at == ("spec", "reward", "scorers", 0, "pool", "podTemplate")


def test_a_local_run_has_the_same_processes_on_one_machine() -> None:
    resolved = plan.resolve_paths(make_job(*POOLS), "/jobs")
    settings = plan.render_settings(resolved, plan.local_layout(resolved, "/runs"))
    assert pools(settings) == {
        "pickscore.pool.nnodes": 2,
        "pickscore.pool.n_gpus_per_node": 3,
        "my_ocr.pool.nnodes": 1,
        "my_ocr.pool.n_gpus_per_node": 0,
        "my_ocr.pool.python": "/jobs/envs/ocr/bin/python",
    }
    assert "trainer.node_resource" not in settings


def test_a_single_scorer_with_a_pool_is_one_of_several() -> None:
    settings = pod_settings(make_job("spec.reward.scorers=[{name: jpeg, pool: {}}]"))
    assert settings["reward.reward_manager.name"] == "MultiVisualRewardManager"
    assert "reward.scorer" not in settings and settings["reward.reward_functions.jpeg.pool.nnodes"] == 1


def test_the_accelerators_of_pools_are_counted() -> None:
    job = make_job(*POOLS)
    metadata = {"name": "j", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    facts = parse_job_facts({"metadata": metadata}, job)
    assert count_accelerators(facts, Attempt()) == 2 + 6
    body = plan.render_attempt(job, 1, SETTINGS)
    body["metadata"] |= metadata
    sizes = {size.group: (size.pods, size.accelerators) for size in parse_rayjob(body).pools}
    assert sizes == {"trainer": (1, 2), "scorer-pickscore": (2, 3), "scorer-my-ocr": (1, 0)}


def test_pods_of_scorers_download_no_model_of_the_trainer() -> None:
    trainer, *others = groups(make_job(*POOLS, "spec.model.base=owner/name"))
    assert "initContainers" in trainer["template"]["spec"]
    assert all("initContainers" not in group["template"]["spec"] for group in others)
