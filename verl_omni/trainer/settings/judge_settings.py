"""PURE: the judge of `reward.reward_model`: where it runs, and what does not work with it."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from verl_omni.reward_loop.part_settings import ray_resource_problem
from verl_omni.trainer.settings import async_settings
from verl_omni.trainer.settings.pool_settings import places, replica_size

MODEL = "reward.reward_model"


def find_problems(config: DictConfig) -> Iterator[str]:
    """Messages about unsupported settings."""
    model = config.reward.reward_model
    if not model.enable:
        return
    if not model.model_path:
        yield f"{MODEL}.model_path: must be given with {MODEL}.enable=true: a folder, or a repository of the hub"
    if config.algorithm.sample_source == "offline" and config.data.val_files is None:
        yield (
            f"{MODEL}.enable: with algorithm.sample_source=offline only evaluations are scored, and there is no "
            "data.val_files; write false"
        )
    if model.rollout.skip_tokenizer_init:
        yield f"{MODEL}.rollout.skip_tokenizer_init: a judge answers with text, which needs its tokenizer; write false"
    yield from _own_pool(model) if model.enable_resource_pool else _shared(config, model)


def _own_pool(model: DictConfig) -> Iterator[str]:
    for name in ("nnodes", "n_gpus_per_node"):
        if model[name] < 1:
            yield f"{MODEL}.{name}: must be at least 1 with {MODEL}.enable_resource_pool=true: {model[name]}"
            return
    if problem := ray_resource_problem(model.ray_resource):
        yield f"{MODEL}.ray_resource: {problem}"


def _shared(config: DictConfig, model: DictConfig) -> Iterator[str]:
    for name in ("node_resource", "ray_resource"):
        if model[name] is not None:
            yield f"{MODEL}.{name}: is not read with {MODEL}.enable_resource_pool=false; remove it"
    if async_settings.batches_ahead(config):
        yield (
            f"{MODEL}.enable_resource_pool: the trainer updates while the next batch is generated and scored, so the "
            "judge needs dedicated accelerators; write true"
        )


def fill_in(config: DictConfig, *, has_accelerator: bool) -> None:
    """Complete the engine's settings for this machine, for which `cpu_values` has been filled in.

    Raises:
        ValueError: the accelerators cannot be divided into replicas.
    """
    model = config.reward.reward_model
    if not model.enable:
        return
    _check_replicas(config, model)
    with open_dict(model):
        if model.enable_resource_pool:
            model.rollout.free_cache_engine = False  # nothing else needs its memory
        model.rollout.enable_sleep_mode = sleeps(config) and has_accelerator
        if has_accelerator:
            return
        defaults: dict[str, Any] = {"distributed_executor_backend": "uni"}
        model.rollout.engine_kwargs.vllm = {**defaults, **(model.rollout.engine_kwargs.get("vllm") or {})}


def _check_replicas(config: DictConfig, model: DictConfig) -> None:
    """Not when settings are loaded: a CPU replaces the size of a replica, so that recipes of accelerators run there."""
    size = replica_size(model.rollout)
    if model.enable_resource_pool and (model.nnodes * model.n_gpus_per_node) % size:
        raise ValueError(
            f"{MODEL}.n_gpus_per_node: {model.nnodes} x {model.n_gpus_per_node} accelerators are no multiple of the "
            f"{size} of a replica (rollout.tensor_model_parallel_size)"
        )
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if not model.enable_resource_pool and ranks % size:
        raise ValueError(
            f"{MODEL}.rollout.tensor_model_parallel_size: the trainer's {ranks} accelerators are no multiple of the "
            f"{size} of a replica; write {MODEL}.rollout.tensor_model_parallel_size=1, or give the judge dedicated "
            f"accelerators with {MODEL}.enable_resource_pool=true"
        )


def sleeps(config: DictConfig) -> bool:
    """Whether the judge sleeps but for the scoring of a batch; otherwise it scores samples as they are generated."""
    model = config.reward.reward_model
    return bool(model.enable and not model.enable_resource_pool and model.rollout.free_cache_engine)


def shared(config: DictConfig) -> bool:
    """Whether the judge runs on the trainer's accelerators."""
    model = config.reward.reward_model
    return bool(model.enable and not model.enable_resource_pool)


def replicas(config: DictConfig) -> int:
    """Number of replicas of the judge; 0 without one."""
    model = config.reward.reward_model
    if not model.enable:
        return 0
    count = accelerators(config) or config.trainer.nnodes * config.trainer.n_gpus_per_node
    return int(count) // replica_size(model.rollout)


def elastic(config: DictConfig) -> bool:
    """Whether lost replicas are replaced, and replicas follow the nodes: each has accelerators of one node, its own."""
    model = config.reward.reward_model
    return accelerators(config) > 0 and model.n_gpus_per_node % replica_size(model.rollout) == 0


def room(config: DictConfig, nodes: list[Mapping[str, float]], accelerator: str) -> int:
    """Number of replicas that nodes have room for; without `node_resource`, the number in the settings.

    Args:
        nodes: Ray's resources of each node.
        accelerator: Ray's name of the trainer's accelerators.
    """
    model = config.reward.reward_model
    if model.node_resource is None:
        return replicas(config)
    return places(nodes, model.node_resource, model.ray_resource or accelerator, replica_size(model.rollout))


def accelerators(config: DictConfig) -> int:
    """Accelerators that only the judge uses."""
    model = config.reward.reward_model
    return int(model.nnodes * model.n_gpus_per_node) if model.enable and model.enable_resource_pool else 0


def model_path(config: DictConfig) -> str | None:
    """The judge's model; None without a judge."""
    model = config.reward.reward_model
    return str(model.model_path) if model.enable else None


def modules(config: DictConfig) -> list[str]:
    """Modules that the judge's processes import."""
    return ["verl_omni.trainer.rewards.judge_servers"] if config.reward.reward_model.enable else []


def describe(config: DictConfig) -> str:
    """Description of the judge's replicas, for the output of a run."""
    size = replica_size(config.reward.reward_model.rollout)
    where = "the trainer's" if shared(config) else "its own"
    return f"{replicas(config)} x {size} of {where} accelerators"
