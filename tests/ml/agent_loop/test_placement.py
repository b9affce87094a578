"""Agent-loop workers on a Ray cluster of two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from verl_omni.agent_loop.manager import DiffusionAgentLoopManager

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


def test_by_default_each_node_has_an_agent_loop_worker(two_nodes: set[str], on_two_nodes: Any) -> None:
    manager = Manager.create(on_two_nodes(2), None, None, None)
    assert len(manager.agent_loop_workers) == 2
    assert set(ray.get([worker.node.remote() for worker in manager.agent_loop_workers])) == two_nodes
