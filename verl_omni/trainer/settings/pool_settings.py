"""PURE: standalone rollout replicas: derived settings, and what does not work with them."""

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig

from verl_omni.reward_loop.part_settings import pools_of, ray_resource_problem
from verl_omni.settings_schema.declarations import COLOCATED, NETWORK, VERL_BACKENDS

ROLLOUT = "actor_rollout_ref.rollout"
HYBRID = "actor_rollout_ref.hybrid_engine"


def find_problems(config: DictConfig) -> Iterator[str]:
    """Messages about unsupported settings."""
    rollout = config.actor_rollout_ref.rollout
    backend = rollout.checkpoint_engine.backend
    if not isinstance(rollout.nnodes, int) or rollout.nnodes < 0:
        yield f"{ROLLOUT}.nnodes: must be a number of nodes, or 0 for engines on the trainer's accelerators"
    elif rollout.nnodes == 0:
        if backend in (NETWORK, *VERL_BACKENDS):
            yield f"{ROLLOUT}.checkpoint_engine.backend: {backend} is for standalone replicas; write {ROLLOUT}.nnodes=1"
        if not config.actor_rollout_ref.hybrid_engine:
            yield f"{HYBRID}: false is for standalone replicas; write true, or {ROLLOUT}.nnodes=1"
        for name in ("node_resource", "ray_resource", "min_replicas"):
            if rollout[name] is not None:
                yield f"{ROLLOUT}.{name}: is not read with {ROLLOUT}.nnodes=0; remove it"
    else:
        yield from _standalone(rollout)


def _standalone(rollout: DictConfig) -> Iterator[str]:
    if rollout.checkpoint_engine.backend == COLOCATED:
        yield (
            f"{ROLLOUT}.checkpoint_engine.backend: naive is for engines on the trainer's accelerators; "
            f"remove it, or write {ROLLOUT}.nnodes=0"
        )
    for name in ("free_cache_engine", "enable_sleep_mode"):
        if rollout[name]:
            yield f"{ROLLOUT}.{name}: a standalone replica never sleeps; remove it, or write {ROLLOUT}.nnodes=0"
    if problem := ray_resource_problem(rollout.ray_resource):
        yield f"{ROLLOUT}.ray_resource: {problem}"
    size = replica_size(rollout)
    if not isinstance(rollout.n_gpus_per_node, int) or rollout.n_gpus_per_node < 1:
        yield f"{ROLLOUT}.n_gpus_per_node: must be at least 1: {rollout.n_gpus_per_node}"
    elif rollout.n_gpus_per_node % size:
        yield (
            f"{ROLLOUT}.n_gpus_per_node: {rollout.n_gpus_per_node} is no multiple of the {size} accelerators of a "
            "replica, which must be on one node"
        )
    elif rollout.min_replicas is not None and not 1 <= rollout.min_replicas <= replicas(rollout):
        yield f"{ROLLOUT}.min_replicas: must be from 1 to the {replicas(rollout)} replicas: {rollout.min_replicas}"


def fill_in(rollout: DictConfig, *, has_accelerator: bool) -> None:
    """Replace null in the settings that depend on `rollout.nnodes`, and in the settings of accelerator sleep."""
    standalone = rollout.nnodes > 0
    if rollout.checkpoint_engine.backend in (None, *VERL_BACKENDS):
        rollout.checkpoint_engine.backend = NETWORK if standalone else COLOCATED
    if rollout.free_cache_engine is None:
        rollout.free_cache_engine = has_accelerator and not standalone  # on a CPU, sleep would free nothing
    if rollout.enable_sleep_mode is None:
        rollout.enable_sleep_mode = has_accelerator
    if standalone:
        rollout.enable_sleep_mode = False
        if rollout.min_replicas is None:
            rollout.min_replicas = 1


def replicas(rollout: DictConfig) -> int:
    """Number of standalone replicas."""
    return int(rollout.nnodes * rollout.n_gpus_per_node // replica_size(rollout))


def room(rollout: DictConfig, nodes: list[Mapping[str, float]], accelerator: str) -> int:
    """Number of standalone replicas that nodes have room for.

    Args:
        nodes: Ray's resources of each node.
        accelerator: Ray's name of the trainer's accelerators.
    """
    if rollout.node_resource is None:
        return replicas(rollout)
    return places(nodes, rollout.node_resource, rollout.ray_resource or accelerator, replica_size(rollout))


def places(nodes: list[Mapping[str, float]], resource: str, accelerator: str, size: int) -> int:
    """Number of replicas, of `size` accelerators of one node each, that the nodes with a resource have room for."""
    return sum(int(node.get(accelerator, 0.0)) // size for node in nodes if resource in node)


def resources(config: DictConfig) -> dict[str, str]:
    """Custom Ray resources that pin the pools, each with the setting that names it."""
    named = {"trainer.node_resource": config.trainer.node_resource}
    named[f"{ROLLOUT}.node_resource"] = config.actor_rollout_ref.rollout.node_resource
    named["reward.reward_model.node_resource"] = config.reward.reward_model.node_resource
    for key, pool in pools_of(config.reward.reward_functions).items():
        named[f"reward.reward_functions.{key}.pool.node_resource"] = pool.node_resource
    return {resource: setting for setting, resource in named.items() if resource is not None}


def local_problem(config: DictConfig) -> str | None:
    """Message about a Ray resource that does not exist if the run starts Ray on this machine; None if there is none."""
    resources = {
        f"{ROLLOUT}.ray_resource": config.actor_rollout_ref.rollout.ray_resource,
        "reward.reward_model.ray_resource": config.reward.reward_model.ray_resource,
    }
    pools = pools_of(config.reward.reward_functions)
    resources |= {f"reward.reward_functions.{key}.pool.ray_resource": pool.ray_resource for key, pool in pools.items()}
    for name, resource in resources.items():
        if resource is not None:
            return (
                f"{name}: {resource}: this machine has accelerators of one kind; remove it, or name a Ray cluster with "
                "ray_kwargs.ray_init.address"
            )
    return None


def replica_size(rollout: DictConfig) -> int:
    """Accelerators of one replica."""
    return int(rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size)
