"""PURE: accelerators of scorers: what each reward worker reserves in Ray, and whether that many are free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig

from verl_omni.trainer import judges

_ACCELERATOR = re.compile(r"(?:cuda|npu)(?::(\d+))?")
PLACED = 1e-4  # of a custom resource, which a node has once: enough to place an actor on the node


def devices(reward: DictConfig) -> dict[str, str]:
    """Accelerators that scorers ask for, by the setting `device` that names each."""
    given = {"reward.scorer_kwargs.device": reward.scorer_kwargs.get("device")}
    given |= {
        f"reward.reward_functions.{key}.device": own.get("device") for key, own in reward.reward_functions.items()
    }
    return {name: str(value) for name, value in given.items() if _ACCELERATOR.fullmatch(str(value))}


def per_worker(reward: DictConfig) -> int:
    """Accelerators that a reward worker reserves: as many as its devices number; 0 if no scorer asks for one.

    Ray shows a worker those that it reserved only, as device 0, 1, ….
    """
    found = [_ACCELERATOR.fullmatch(each) for each in devices(reward).values()]
    return max((int(match[1] or 0) + 1 for match in found if match is not None), default=0)


def wanted(reward: DictConfig) -> int:
    """Accelerators of all reward workers."""
    return per_worker(reward) * int(reward.num_workers)


def worker_options(reward: DictConfig, accelerator: str, node_resource: str | None) -> dict[str, Any]:
    """Options of Ray for each reward worker that reserves accelerators.

    Args:
        accelerator: the resource that Ray counts, such as `GPU`.
        node_resource: the custom resource of the trainer's nodes; None: any node.
    """
    count = per_worker(reward)
    placed = {} if node_resource is None else {node_resource: PLACED}
    if accelerator == "GPU":
        return {"num_cpus": 0, "num_gpus": count, "resources": placed}
    return {"num_cpus": 0, "resources": {**placed, accelerator: count}}


def shortage(config: DictConfig, nodes: Iterable[Mapping[str, float]], accelerator: str) -> str | None:
    """Why the reward workers would wait for accelerators for ever; None if there are enough.

    Args:
        nodes: Ray's resources of each node.
        accelerator: Ray's name of the trainer's accelerators, which reward workers use, too.
    """
    needed = wanted(config.reward)
    if not needed:
        return None
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    there = int(sum(node.get(accelerator, 0) for node in nodes))
    taken = trainer.nnodes * trainer.n_gpus_per_node
    if rollout.ray_resource in (None, accelerator):
        taken += rollout.nnodes * rollout.n_gpus_per_node
    if config.reward.reward_model.ray_resource in (None, accelerator):
        taken += judges.accelerators(config)
    if there - taken >= needed:
        return None
    return (
        f"{', '.join(devices(config.reward))}: {config.reward.num_workers} reward workers reserve "
        f"{per_worker(config.reward)} accelerators each, and of the {there} that Ray has, training, rollout and judge "
        f"take {taken}; write cpu, lower trainer.n_gpus_per_node or reward.num_workers, or serve the model yourself "
        "and use the scorer http_batch"
    )
