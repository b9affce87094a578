"""PURE: number of agent-loop workers, reward workers and requests in flight, derived where the settings are null."""

import math
from dataclasses import dataclass

from omegaconf import DictConfig, open_dict

from verl_omni.trainer.settings import judge_settings, pool_settings, scorer_devices

# An agent-loop process takes about 7 ms of CPU time per image (docs/contribute/benchmarks.md, "Latency added by the
# agent loop"), so one core serves eight engines that each generate up to 15 images a second.
REPLICAS_PER_AGENT_LOOP_WORKER = 8
# While the engine runs one batch, the next one waits in its queue.
BATCHES_IN_FLIGHT = 2
# Actors of Ray besides trainers, engine servers, agent-loop and reward workers: router, load balancer and reserve.
OTHER_ACTORS = 8


@dataclass(frozen=True, slots=True)
class RunSize:
    """Inputs that the numbers are derived from.

    Attributes:
        nodes: machines with accelerators (or with processes on the CPU), > 0.
        replicas: rollout engines over all nodes, > 0.
        samples: samples of a training step: prompts x n, > 0.
        engine_batch: requests that an engine generates at once (`max_num_seqs`), > 0.
        cpus: CPUs of a node, > 0.
    """

    nodes: int
    replicas: int
    samples: int
    engine_batch: int
    cpus: int


def agent_loop_workers(size: RunSize) -> int:
    """At least one for each node and for each eight engines, as far as there are CPUs and samples.

    Verl places them round-robin over the nodes. A batch is padded to a multiple of the workers, so of the numbers below
    twice the least one, the first that divides the samples is taken; without one, up to `workers - 1` samples are
    generated in vain.
    """
    limit = min(size.samples, size.nodes * size.cpus)
    least = min(limit, max(size.nodes, math.ceil(size.replicas / REPLICAS_PER_AGENT_LOOP_WORKER)))
    return next((count for count in range(least, min(limit + 1, 2 * least)) if size.samples % count == 0), least)


def reward_workers(size: RunSize) -> int:
    """One for each engine and at least one for each node, on at most half of the CPUs; never more than samples."""
    limit = size.nodes * max(1, size.cpus // 2)
    return min(size.samples, limit, max(size.nodes, size.replicas))


def requests_in_flight(size: RunSize, workers: int) -> int:
    """Requests that each agent-loop worker has in generation: together, two batches of every engine.

    Args:
        workers: number of agent-loop workers, > 0.
    """
    return math.ceil(size.replicas * size.engine_batch * BATCHES_IN_FLIGHT / workers)


def fill_in(config: DictConfig, cpus: int) -> None:
    """Replace null in the three settings by the derived number; other values stay.

    Args:
        cpus: CPUs of a node.

    Raises:
        ValueError: one of the settings is not positive.
    """
    rollout = config.actor_rollout_ref.rollout
    trainer = config.trainer
    size = RunSize(
        # With a resource, these actors are on the trainer's nodes only (actor_nodes).
        nodes=trainer.nnodes + (rollout.nnodes if trainer.node_resource is None else 0),
        replicas=pool_settings.replicas(rollout)
        or max(1, trainer.nnodes * trainer.n_gpus_per_node // pool_settings.replica_size(rollout)),
        samples=max(1, config.data.train_batch_size * rollout.n),
        engine_batch=rollout.max_num_seqs,
        cpus=cpus,
    )
    counts = {
        "actor_rollout_ref.rollout.agent.num_workers": rollout.agent.num_workers,
        "actor_rollout_ref.rollout.max_concurrent_requests": rollout.max_concurrent_requests,
        "reward.num_workers": config.reward.num_workers,
    }
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}: must be at least 1, or null for a number derived from the run, not {value}")
    with open_dict(config):
        if rollout.agent.num_workers is None:
            rollout.agent.num_workers = agent_loop_workers(size)
        if rollout.max_concurrent_requests is None:
            rollout.max_concurrent_requests = requests_in_flight(size, rollout.agent.num_workers)
        if config.reward.num_workers is None:
            config.reward.num_workers = _of_accelerators(config) or reward_workers(size)


def _of_accelerators(config: DictConfig) -> int:
    """Reward workers of scorers on accelerators: one with its own, or one on each of the trainer's; 0 on the CPU."""
    if scorer_devices.sharing(config.reward):
        return int(config.trainer.nnodes * config.trainer.n_gpus_per_node)
    return 1 if scorer_devices.per_worker(config.reward) else 0


def describe(config: DictConfig) -> str:
    """One line on what is started, for the output of a run; the three settings must be numbers."""
    rollout = config.actor_rollout_ref.rollout
    loops = rollout.agent.num_workers
    requests = rollout.max_concurrent_requests
    rewards = config.reward.num_workers
    return f"agent-loop workers: {loops}, each with up to {requests} requests in flight; reward workers: {rewards}"


def logical_cpus(config: DictConfig) -> int:
    """CPUs that Ray must have on the only node of a run, where each actor requests one."""
    rollout = config.actor_rollout_ref.rollout
    # A trainer, or the worker of a standalone replica, and at most one engine server for each accelerator.
    # The judge has the same on its own accelerators; it, or scorers, on the trainer's have a bundle's CPU each.
    shared = config.trainer.n_gpus_per_node * (scorer_devices.colocated(config) - 1)
    return int(
        2 * (local_accelerators(config) + shared) + rollout.agent.num_workers + config.reward.num_workers + OTHER_ACTORS
    )


def local_accelerators(config: DictConfig) -> int:
    """Accelerators of a run whose pools are all on one node."""
    rollout = config.actor_rollout_ref.rollout
    dedicated = judge_settings.accelerators(config) + scorer_devices.pooled_accelerators(config.reward)
    return int(config.trainer.n_gpus_per_node + rollout.nnodes * rollout.n_gpus_per_node + dedicated)
