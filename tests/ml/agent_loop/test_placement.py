"""Agent-loop workers on a Ray cluster of two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf
from ray.cluster_utils import Cluster

from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
from verl_omni.trainer import process_counts

pytestmark = pytest.mark.slow  # starts two Ray nodes


@ray.remote
class Where:
    """A worker that says on which node it is."""

    def __init__(self, *_: Any) -> None:
        pass

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


class Manager(DiffusionAgentLoopManager):
    agent_loop_workers_class = Where


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        yield {node["NodeID"] for node in ray.nodes()}
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_by_default_each_node_has_an_agent_loop_worker(two_nodes: set[str]) -> None:
    config = OmegaConf.create({
        "trainer": {"nnodes": 2, "n_gpus_per_node": 1}, "data": {"train_batch_size": 16},
        "reward": {"num_workers": None},
        "actor_rollout_ref": {"model": {}, "rollout": {
            "n": 8, "max_num_seqs": 4, "tensor_model_parallel_size": 1, "data_parallel_size": 1,
            "pipeline_model_parallel_size": 1, "agent": {"num_workers": None}, "max_concurrent_requests": None,
        }},
    })  # fmt: skip
    process_counts.fill_in(config, cpus=2)
    manager = Manager.create(config, None, None, None)
    assert len(manager.agent_loop_workers) == 2
    assert set(ray.get([worker.node.remote() for worker in manager.agent_loop_workers])) == two_nodes
