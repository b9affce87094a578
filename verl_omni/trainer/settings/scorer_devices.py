"""PURE: where scorers run: on the CPU, on accelerators that each reward worker reserves, or on the trainer's."""

import copy
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.reward_loop.part_settings import TRAINER, ScorerPool, pool_of, pools_of
from verl_omni.reward_loop.rewards import has_setting
from verl_omni.trainer.settings import async_settings, judge_settings
from verl_omni.trainer.settings.reward_settings import is_group_wise

_ACCELERATOR = re.compile(r"(?:cuda|npu)(?::(\d+))?")
PLACED = 1e-4  # amount of a node's custom resource (1 in total) that places an actor on the node
SMALLEST_SHARE = 1e-4  # Ray's smallest share of an accelerator
FUNCTION = "reward.custom_reward_function"


def _given(reward: DictConfig) -> dict[str, str]:
    """The devices that settings name."""
    groups = ("reward.scorer_kwargs", f"{FUNCTION}.reward_kwargs")
    sections = {group: OmegaConf.select(reward, group.partition(".")[2]) for group in groups}
    sections |= {f"reward.reward_functions.{key}": scorer for key, scorer in reward.reward_functions.items()}
    return {
        f"{name}.device": str(section.device)
        for name, section in sections.items()
        if OmegaConf.is_dict(section) and section.get("device") is not None
    }


def devices(reward: DictConfig) -> dict[str, str]:
    """Accelerators that scorers ask for, by the setting `device` that names each."""
    return {name: value for name, value in _given(reward).items() if _ACCELERATOR.fullmatch(value)}


def sharing(reward: DictConfig) -> list[str]:
    """The settings of scorers that share the trainer's accelerators."""
    return [name for name, value in _given(reward).items() if value == TRAINER]


def scores_late(config: DictConfig) -> bool:
    """Whether a batch is scored once it is generated: `needs_engines_asleep`, or a scorer compares its samples."""
    return needs_engines_asleep(config) or is_group_wise(config.reward)


def needs_engines_asleep(config: DictConfig) -> bool:
    """Whether a judge or a scorer needs the engines' accelerators."""
    return bool(sharing(config.reward)) or judge_settings.sleeps(config)


def colocated(config: DictConfig) -> int:
    """Equal shares that Ray counts of each of the trainer's accelerators: the trained model, a judge, scorers."""
    return 1 + judge_settings.shared(config) + bool(sharing(config.reward))


def find_problems(config: DictConfig) -> Iterator[str]:
    """Messages about settings that do not work with scorers on the trainer's accelerators, or with group-wise ones."""
    if async_settings.batches_ahead(config) and is_group_wise(config.reward):
        yield (
            "reward: a scorer with a parameter groups scores a batch once it is generated, and none may be generated "
            "ahead; write trainer.use_v1=false"
        )
    if not (shared := sharing(config.reward)):
        return
    names = ", ".join(shared)
    if named := devices(config.reward):
        yield (
            f"{names}: a reward worker has dedicated accelerators ({', '.join(named)}), or shares the trainer's; write "
            f"{TRAINER} for all of them, or for none"
        )
    if async_settings.batches_ahead(config):
        yield (
            f"{names}: the trainer updates while the next batch is generated and scored, so its accelerators are busy; "
            "write cpu, or cuda for an accelerator of the scorer's own"
        )


def resolved(config: DictConfig, device: str) -> DictConfig:
    """A copy of the settings in which scorers on the trainer's accelerators have their device.

    Args:
        device: torch's name of it; Ray shows a reward worker one accelerator.
    """
    copied = copy.deepcopy(config)
    for name in sharing(config.reward):
        OmegaConf.update(copied, name, device)
    return copied


def describe(reward: DictConfig, device: str) -> str | None:
    """Where scorers with a model run, for the output of a run; None if there are none.

    Args:
        device: the trainer's, as torch names it.
    """
    parts = {str(part.get("name") or key): part for key, part in reward.reward_functions.items()}
    function = reward.custom_reward_function
    single = {str(reward.scorer or "the scorers of the rows"): reward.scorer_kwargs}
    if function.path is not None:
        single = {str(function.name): function.reward_kwargs or {}}
    named = parts or single
    lines = []
    for name, settings in named.items():
        if pool := pool_of(settings):
            where = f"{device}, an accelerator for each" if pool.accelerators else "cpu"
            lines.append(f"{name} in {pool.processes} dedicated processes on {where}")
            continue
        if (chosen := settings.get("device") or ("cpu" if has_setting(name, "device") else None)) is None:
            continue
        if chosen == TRAINER:
            lines.append(f"{name} on the trainer's {device}, once a batch is generated")
        elif _ACCELERATOR.fullmatch(str(chosen)):
            lines.append(f"{name} on {chosen}, a dedicated accelerator")
        else:
            advice = "" if device == "cpu" else f"; its setting device={TRAINER} would share the trainer's {device}"
            lines.append(f"{name} on {chosen}{advice}")
    return f"scorers: {', '.join(lines)}" if lines else None


def per_worker(reward: DictConfig) -> int:
    """Accelerators that a reward worker reserves: the highest device number + 1; 0 if no scorer asks for one.

    Ray shows a worker those that it reserved only, as device 0, 1, ….
    """
    matches = [_ACCELERATOR.fullmatch(name) for name in devices(reward).values()]
    return max((int(match[1] or 0) + 1 for match in matches if match is not None), default=0)


def wanted(reward: DictConfig) -> int:
    """Accelerators of all reward workers."""
    return per_worker(reward) * int(reward.num_workers)


def worker_options(reward: DictConfig, accelerator: str, node_resource: str | None) -> dict[str, Any]:
    """Options of Ray for each reward worker that reserves accelerators.

    Args:
        accelerator: the resource that Ray counts, such as `GPU`.
        node_resource: the custom resource of the trainer's nodes; None: any node.
    """
    placed = {} if node_resource is None else {node_resource: PLACED}
    return _reserving(per_worker(reward), accelerator, placed)


def shared_options(workers: int, accelerators: int, colocated: int, accelerator: str) -> dict[str, Any]:
    """Options of Ray for each reward worker that shares an accelerator of the trainer's placement group.

    Args:
        workers: number of reward workers. accelerators: number of the trainer's accelerators.
        colocated: number of equal shares of each accelerator in the placement group; the reward workers get one.
        accelerator: the resource that Ray counts.
    """
    share = 1 / colocated / math.ceil(workers / accelerators)
    return _reserving(math.floor(share / SMALLEST_SHARE) * SMALLEST_SHARE, accelerator, {})


def pool_options(pool: ScorerPool, accelerator: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Options of Ray for each process of a scorer's pool.

    Args:
        accelerator: the trainer's accelerators as Ray counts them.
        variables: environment variables of the process.
    """
    share = math.floor(1 / pool.processes_per_node / PLACED) * PLACED
    placed = {} if pool.node_resource is None else {pool.node_resource: share}
    environment: dict[str, Any] = {"env_vars": dict(variables)}
    if pool.python is not None:
        environment["py_executable"] = shlex.quote(pool.python)
    options = (
        _reserving(1, pool.ray_resource or accelerator, placed) if pool.accelerators else _reserving(0, "GPU", placed)
    )
    return {**options, "runtime_env": environment}


def pooled_accelerators(reward: DictConfig, accelerator: str | None = None) -> int:
    """Accelerators of scorers' pools.

    Args:
        accelerator: Ray's name of the trainer's accelerators: only these are counted; None: all.
    """
    pools = pools_of(reward.reward_functions).values()
    return sum(pool.accelerators for pool in pools if accelerator is None or pool.ray_resource in (None, accelerator))


def _reserving(count: float, accelerator: str, resources: Mapping[str, float]) -> dict[str, Any]:
    if accelerator == "GPU":
        return {"num_cpus": 0, "num_gpus": count, "resources": dict(resources)}
    return {"num_cpus": 0, "resources": {**resources, accelerator: count}}


def shortage(config: DictConfig, nodes: Iterable[Mapping[str, float]], accelerator: str) -> str | None:
    """Why the reward workers would wait for accelerators for ever; None if there are enough.

    Args:
        nodes: Ray's resources of each node.
        accelerator: Ray's name of the trainer's accelerators, which reward workers use, too.
    """
    needed = wanted(config.reward)
    if not needed:
        return None
    trainer = config.trainer
    rollout = config.actor_rollout_ref.rollout
    there = int(sum(node.get(accelerator, 0) for node in nodes))
    taken = trainer.nnodes * trainer.n_gpus_per_node
    if rollout.ray_resource in (None, accelerator):
        taken += rollout.nnodes * rollout.n_gpus_per_node
    if config.reward.reward_model.ray_resource in (None, accelerator):
        taken += judge_settings.accelerators(config)
    taken += pooled_accelerators(config.reward, accelerator)
    if there - taken >= needed:
        return None
    return (
        f"{', '.join(devices(config.reward))}: {config.reward.num_workers} reward workers reserve "
        f"{per_worker(config.reward)} accelerators each, and of the {there} that Ray has, training, rollout, judge and "
        f"pools of scorers take {taken}; write trainer or cpu, lower trainer.n_gpus_per_node or reward.num_workers, or "
        "serve the model yourself and use the scorer http_batch"
    )
