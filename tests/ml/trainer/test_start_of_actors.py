"""The start of the actors: threads with a configuration each, and the port at which training workers meet.

Hydra copies what it instantiates, and OmegaConf sets the parent of a node to None while it copies it. Another thread
that sends the configuration to a worker at that moment sends one whose `${…}` cannot be resolved.
"""

import random
import socket
from contextlib import suppress
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from verl.single_controller import ray as single_controller
from verl.single_controller.ray import base

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.trainer.replicas import actor_nodes
from verl_omni.trainer.rewards import reward_workers
from verl_omni.trainer.settings import scorer_devices
from verl_omni.utils import rendezvous_ports

ROLLOUT = "actor_rollout_ref.rollout"


class Reached(Exception):
    """All actors of interest have been asked for."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the training workers, the servers and the reward workers of the smallest job are started with."""
    started_with: dict[str, Any] = {"run": smallest_job.load()}

    def group(**arguments: Any) -> Any:
        started_with["ports"] = arguments["master_port_range"]
        return SimpleNamespace(init_model=lambda: [("cpu", None)], world_size=1)

    def client(**_: Any) -> Any:
        raise Reached

    def servers(config: Any, **_: Any) -> Any:
        started_with["servers"] = config
        return SimpleNamespace(get_client=client)

    def rewards(config: Any, *_: Any) -> Any:
        started_with["rewards"] = config

    monkeypatch.setattr(startup, "wait_for_nodes", lambda *_: None)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(scorer_devices, "shortage", lambda *_: None)
    monkeypatch.setattr(single_controller, "RayWorkerGroup", group)
    monkeypatch.setattr(actor_nodes.PinnedServerManager, "create", servers)
    monkeypatch.setattr(reward_workers, "start_reward_workers", rewards)
    with suppress(Reached):
        startup._start_actors(started_with["run"], lambda _: None, SimpleNamespace())  # type: ignore[arg-type]
    return started_with


def test_no_two_threads_have_the_same_configuration(given: dict[str, Any]) -> None:
    configurations = [given[name] for name in ("run", "servers", "rewards")]
    assert configurations[1:] == configurations[:-1]
    assert len(set(map(id, configurations))) == 3


def test_replicas_that_start_in_threads_do_not_read_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = smallest_job.load(f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1").actor_rollout_ref
    configs: list[Any] = []
    servers = SimpleNamespace(
        rollout_replica_class=lambda **kwargs: configs.append(kwargs["config"]),
        rollout_config=config.rollout,
        model_config=config.model,
    )
    monkeypatch.setattr(startup, "ReplicaPool", lambda updates, launcher, **_: launcher)
    launcher = startup._replica_pool(config.rollout, servers, SimpleNamespace(replicas=[]), None)  # type: ignore[arg-type]
    for rank in range(2):
        launcher.make(rank)  # type: ignore[attr-defined]
    assert configs[0] is configs[1] and is_dataclass(configs[0])


def test_workers_meet_at_a_port_that_the_kernel_and_ray_give_to_nothing_else(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    address, port = base.get_master_addr_port._function(given["ports"])
    assert address == "127.0.0.1" and int(port) in range(20000, 30000)


def test_two_runs_search_from_different_ports_and_have_room() -> None:
    searched = [rendezvous_ports.search_range(random.Random(seed)) for seed in range(9)]
    assert len({first for first, _ in searched}) == 9
    assert all(last - first >= 5000 for first, last in searched)


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    for first in range(20000, 30000):
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", first))
            _, port = base.get_master_addr_port._function([first, 30000])
            assert int(port) > first
            return
