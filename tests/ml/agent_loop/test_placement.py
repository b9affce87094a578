"""Agent-loop workers and the router of a judge on a Ray cluster of two nodes."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.ml import smallest_job
from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
from verl_omni.trainer.replicas.actor_nodes import start_judge_router
from verl_omni.trainer.settings import process_counts

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
    config = smallest_job.load("trainer.nnodes=2")
    process_counts.fill_in(config, cpus=2)
    manager = Manager.create(config, None, None, None)
    assert len(manager.agent_loop_workers) == 2
    assert set(ray.get([worker.node.remote() for worker in manager.agent_loop_workers])) == two_nodes


def test_the_router_of_a_judge_is_on_the_drivers_node_whose_address_it_listens_on(two_nodes: set[str]) -> None:
    driver = ray.get_runtime_context().get_node_id()
    held = Where.options(num_cpus=2).remote()
    # The driver's node has no CPU left, so Ray itself would choose the other one.
    assert ray.get(held.node.remote()) == driver
    router, address = start_judge_router(["127.0.0.1:1"], "the judge", 60.0, elastic=False)
    node = ray.get(router.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    assert (node, address.rpartition(":")[0]) == (driver, ray.util.get_node_ip_address())
