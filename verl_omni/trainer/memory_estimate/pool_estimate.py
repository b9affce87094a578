"""PURE: peaks of the trainer's pool and of the rollout pool, for a job whose engines have dedicated accelerators."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_omni.trainer.memory_estimate.engine_memory import TEXT_ENCODING, EngineMemory
from verl_omni.trainer.memory_estimate.estimate import (
    Estimate,
    Phase,
    Setup,
    awake,
    before_update,
    bytes_of_a_step,
    encodes_apart,
    encoding_prompts,
    host_phases,
    kept_by_engine,
    offloaded,
    on_device,
    on_trainer_host,
    receiving,
    scorers_on_cpu,
    starting,
    to_score,
    with_contexts,
    without_zeros,
)
from verl_omni.trainer.memory_estimate.trainer_memory import TrainerMemory
from verl_omni.weight_sync.buckets import PREFERRED_BYTES

BUCKETS_OF_RANK_0 = 2  # one is filled while the other is sent (weight_sync/buckets.py)


@dataclass(frozen=True, slots=True)
class RolloutPool:
    """Layout of the standalone replicas.

    Attributes:
        nodes: hosts. workers: accelerators (or processes on the CPU) of each.
        replica_size: accelerators of a replica.
        in_flight: bytes of the samples that a replica has answered or is generating, as they leave the engine.
    """

    nodes: int
    workers: int
    replica_size: int
    in_flight: int

    @property
    def replicas_per_node(self) -> int:
        """Replicas of one host."""
        return self.workers // self.replica_size

    @property
    def replicas(self) -> int:
        """Replicas of all hosts."""
        return self.nodes * self.replicas_per_node


def estimate_pools(
    setup: Setup, pool: RolloutPool, trainer: TrainerMemory, engine: EngineMemory
) -> tuple[Estimate, Estimate]:
    """Estimates of the trainer's pool, with the bytes that a step moves, and of the rollout pool."""
    return _trainer_pool(setup, pool, trainer), _rollout_pool(setup, pool, trainer, engine)


def network_bucket(setup: Setup, trainer: TrainerMemory) -> int:
    """Bytes of the largest bucket on its way over the network."""
    return max(trainer.largest_sent, min(setup.bucket, PREFERRED_BYTES, trainer.sent))


def _trainer_pool(setup: Setup, pool: RolloutPool, trainer: TrainerMemory) -> Estimate:
    ranks = setup.ranks_per_node
    device = [Phase(name, parts) for name, parts in on_device(setup, trainer).items()]
    processes = ranks + 1 + setup.helpers_per_node  # 1: the driver
    always = on_trainer_host(setup, trainer, processes)
    away = offloaded(setup, trainer)
    buckets = {"buckets to send": BUCKETS_OF_RANK_0 * network_bucket(setup, trainer)}
    host = (
        *(Phase(name, {**always, **to_score(setup, name), **away}) for name in host_phases(setup)),
        Phase("update", always | before_update(setup, trainer)),
        Phase("weight sync", {**always, **away, "offloaded weights": 0, **buckets}),
    )
    moved = {
        **bytes_of_a_step(setup, trainer),
        "weights to each replica": pool.replica_size * trainer.sent,  # each of its workers gets all of them
        "weights to all replicas": pool.replicas * pool.replica_size * trainer.sent,
    }
    if not setup.accelerator:
        device = [Phase(phase.name, {**phase.parts, **scorers_on_cpu(setup)}) for phase in device]
        return Estimate((), _on_host(device, host, ranks), moved)
    phases_on_host = (starting(setup, trainer, processes), *host)
    return Estimate(with_contexts(device, 1 + setup.scorers_per_rank), without_zeros(phases_on_host), moved)


def _rollout_pool(setup: Setup, pool: RolloutPool, trainer: TrainerMemory, engine: EngineMemory) -> Estimate:
    # Next to each engine worker one that receives weights; on the CPU the engine is in its server's process.
    workers = pool.workers * (2 if setup.accelerator else 1)
    processes = {"processes": (workers + pool.replicas_per_node) * setup.process}
    processes["text encoders at rest"] = pool.workers * engine.offloaded if setup.accelerator else 0
    weights = awake(setup, trainer, engine)
    device = []
    host = []
    if encodes_apart(setup, engine):
        device.append(Phase(TEXT_ENCODING, {**weights, **encoding_prompts(engine, engine.held)}))
    if setup.generation is not None:
        in_flight = {"samples in flight": pool.replicas_per_node * pool.in_flight}
        device.append(Phase(setup.generation, {**weights, "engine activations": engine.held}))
        host.append(Phase(setup.generation, {**processes, **in_flight}))
    # On an accelerator, the allocator of the engine's process keeps the memory of its passes: it never sleeps.
    kept = kept_by_engine(setup, engine)
    device.append(Phase("weight sync", {**weights, **kept, **receiving(setup, trainer)}))
    host.append(Phase("weight sync", {**processes, "received buckets": pool.workers * network_bucket(setup, trainer)}))
    if not setup.accelerator:
        return Estimate((), _on_host(device, host, pool.workers), {})
    return Estimate(with_contexts(device, 2), without_zeros(host), {})


def _on_host(device: Sequence[Phase], host: Sequence[Phase], workers: int) -> tuple[Phase, ...]:
    """Phases of a host without accelerators: what `workers` of them would have, and what the host has."""
    phases = []
    for ours, theirs in zip(host, device, strict=True):
        parts = {name: workers * size for name, size in theirs.parts.items()}
        phases.append(Phase(ours.name, parts | {name: size + parts.get(name, 0) for name, size in ours.parts.items()}))
    return without_zeros(phases)
