"""Threads of the start-up, and the configuration, which threads cannot share: Hydra copies what it instantiates.

OmegaConf sets the parent of a node to None while it copies it. Another thread that sends the configuration to a worker
at that moment sends one whose `${…}` cannot be resolved.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from verl.single_controller import ray as single_controller

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.trainer.replicas import actor_nodes
from verl_omni.trainer.rewards import reward_workers
from verl_omni.trainer.settings import scorer_devices

ROLLOUT = "actor_rollout_ref.rollout"


class Reached(Exception):
    """All threads have their configuration."""


def test_no_two_threads_have_the_same_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = smallest_job.load()
    given: dict[str, Any] = {}

    def client(**_: Any) -> Any:
        raise Reached

    def servers(config: Any, **_: Any) -> Any:
        given["servers"] = config
        return SimpleNamespace(get_client=client)

    def rewards(config: Any, *_: Any) -> Any:
        given["rewards"] = config

    monkeypatch.setattr(startup, "wait_for_nodes", lambda *_: None)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(scorer_devices, "shortage", lambda *_: None)
    workers = SimpleNamespace(init_model=lambda: ["cpu"], world_size=1)
    monkeypatch.setattr(single_controller, "RayWorkerGroup", lambda **_: workers)
    monkeypatch.setattr(actor_nodes.PinnedServerManager, "create", servers)
    monkeypatch.setattr(reward_workers, "start_reward_workers", rewards)
    with suppress(Reached):
        startup._start_actors(config, lambda _: None, SimpleNamespace())  # type: ignore[arg-type]
    assert given["servers"] == given["rewards"] == config
    assert len({id(each) for each in (config, *given.values())}) == 3


def test_replicas_that_start_in_threads_do_not_read_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = smallest_job.load(f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1").actor_rollout_ref
    given: list[Any] = []
    servers = SimpleNamespace(
        rollout_replica_class=lambda **kwargs: given.append(kwargs["config"]),
        rollout_config=config.rollout,
        model_config=config.model,
    )
    monkeypatch.setattr(startup, "ReplicaPool", lambda updates, launcher, **_: launcher)
    launcher = startup._replica_pool(config.rollout, servers, SimpleNamespace(replicas=[]), None)  # type: ignore[arg-type]
    for rank in range(2):
        launcher.make(rank)  # type: ignore[attr-defined]
    assert given[0] is given[1] and is_dataclass(given[0])
