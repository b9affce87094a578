"""Ray has a CPU for each actor that the trainer starts when a job leaves the numbers of workers open."""

import math
from pathlib import Path

import pytest

from omni_operator import plan
from omni_operator.api import load_job
from verl_omni.trainer.settings.process_counts import RunSize, agent_loop_workers, reward_workers

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo-cluster.yaml"


@pytest.mark.parametrize(("own", "pods", "count"), [(1, 1, 1), (1, 2, 1), (8, 3, 4), (1, 8, 16), (16, 8, 8)])
def test_with_two_pools_each_pod_has_a_logical_cpu_for_each_of_its_actors(own: int, pods: int, count: int) -> None:
    job = load_job(
        EXAMPLE,
        [
            f"spec.trainer.accelerator={{vendor: NVIDIA, count: {own}}}",
            f"spec.rollout.replicas={pods}",
            f"spec.rollout.accelerator={{vendor: NVIDIA, count: {count}}}",
            "spec.rollout.placement=Separate",
            "spec.trainer.batch={prompts: 96}",
        ],
    ).job
    size = RunSize(nodes=1 + pods, replicas=pods * count, samples=8 * 96, engine_batch=8, cpus=1024)
    workers = sum(math.ceil(number(size) / (1 + pods)) for number in (agent_loop_workers, reward_workers))
    settings = plan.ClusterSettings(image="rollout:1")
    trainer, rollout = plan.render_attempt(job, 1, settings)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    # A trainer, or the worker and the server of an engine, for each accelerator; router and load balancer.
    assert int(trainer["resources"]["CPU"]) >= own + workers + 2
    assert int(rollout["resources"]["CPU"]) >= 2 * count + workers + 2


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize(("count", "parallel"), [(1, 1), (4, 4), (8, 1), (8, 8), (16, 1), (16, 4)])
def test_a_pod_has_a_logical_cpu_for_each_of_its_actors(nodes: int, count: int, parallel: int) -> None:
    prompts = 48 * nodes
    job = load_job(
        EXAMPLE,
        [
            f"spec.trainer.replicas={nodes}",
            f"spec.trainer.accelerator={{vendor: NVIDIA, count: {count}}}",
            f"spec.rollout.replicas={nodes * count // parallel}",
            f"spec.rollout.engine.tensorParallelSize={parallel}",
            f"spec.trainer.batch={{prompts: {prompts}}}",
            "spec.rollout.samplesPerPrompt=8",
            "spec.checkpoint.claimName=runs",
        ],
    ).job
    counts = {name for name in plan.render_settings(*plan.resolve_for_pods(job)) if "num_workers" in name}
    assert counts == set(), "the trainer derives them"
    size = RunSize(nodes=nodes, replicas=nodes * count // parallel, samples=8 * prompts, engine_batch=8, cpus=1024)
    workers = sum(math.ceil(number(size) / nodes) for number in (agent_loop_workers, reward_workers))
    settings = plan.ClusterSettings(image="rollout:1")
    (group,) = plan.render_attempt(job, 1, settings)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    # A trainer and at most one engine server for each accelerator; router and load balancer are on one of the nodes.
    assert int(group["resources"]["CPU"]) >= 2 * count + workers + 2
