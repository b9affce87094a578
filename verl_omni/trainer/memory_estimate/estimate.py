"""PURE: peaks of a job by phase and part, on a device and on a host, and the bytes that a step moves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_omni.trainer.memory_estimate.engine_memory import TEXT_ENCODING, EngineMemory
from verl_omni.trainer.memory_estimate.trainer_memory import TrainerMemory

GIB = 1 << 30
# Assumptions: what a process takes on its device before its first tensor (driver context, library workspaces; not
# measured here), and in CPU memory (Python, torch, and the libraries that it imports). Forked workers share what they
# imported: docs/figures/start_up.json has 3.2 GiB for five processes, and 6.2 without forking.
DEVICE_CONTEXT = int(0.6 * GIB)
PROCESS = GIB
FORKED_PROCESS = int(0.6 * GIB)
# Share of a device's memory reserved for what is not counted: fragmentation, workspaces of kernels and collectives.
RESERVE = 0.08
ENCODERS = "trainer's encoders"
START_VALUES = "values before the update"


@dataclass(frozen=True, slots=True)
class Setup:
    """Layout of a run, from its settings.

    Attributes:
        nodes, ranks: hosts, and accelerators (or processes on the CPU) over all of them.
        helpers: agent-loop and reward workers, over all nodes.
        accelerator: whether there are accelerators; without any, all parts are in CPU memory.
        samples: number of samples that the engines generate for a step; 0: training reads pairs of a data set.
        pairs: bytes of the images of a step's pairs, as the ranks get them; 0: the engines generate the samples.
        evaluates: whether the engines generate samples for evaluations.
        stored: bytes of a step's samples in the object store.
        trained: bytes that the ranks load from it; for pairs, bytes that the ranks have encoded.
        pixels: bytes of a sample as it is scored.
        waiting: bytes of a step's samples that wait for a judge or a scorer until all are generated.
        scorers: reward workers with models on the trainer's accelerators, over all nodes; 0: none.
        scorer_weights, scorer_activations: bytes of the models of such a worker, and of its largest call.
        updates: optimizer steps of one training step.
        sends_adapter: whether a weight update sends the adapter, and not all weights.
        bucket: bytes of the buffer of a weight update.
        sleeps: whether the engine leaves its device during updates.
        offloads_weights, offloads_optimizer: whether they are in CPU memory while they are not used.
        copies_checkpoints: whether checkpoints are written in the background, from a copy in CPU memory.
        regathers: whether the backward pass gathers the weights again.
        ahead: batches that are generated ahead of the one that is trained on.
        forks: whether Ray's workers are forked from a process that has imported everything.
    """

    nodes: int
    ranks: int
    helpers: int
    accelerator: bool
    samples: int
    pairs: int
    evaluates: bool
    stored: int
    trained: int
    pixels: int
    waiting: int
    scorers: int
    scorer_weights: int
    scorer_activations: int
    updates: int
    sends_adapter: bool
    bucket: int
    sleeps: bool
    offloads_weights: bool
    offloads_optimizer: bool
    copies_checkpoints: bool
    regathers: bool
    ahead: int
    forks: bool

    @property
    def process(self) -> int:
        """CPU memory of a process without its tensors."""
        return FORKED_PROCESS if self.forks else PROCESS

    @property
    def generation(self) -> str | None:
        """Name of the phase in which engines generate; None if they never do."""
        if not self.pairs:
            return "generation"
        return "evaluation" if self.evaluates else None

    @property
    def trains_on(self) -> str:
        """What a micro-batch consists of, as a noun."""
        return "pairs" if self.pairs else "trajectories"

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one host."""
        return self.ranks // self.nodes

    @property
    def helpers_per_node(self) -> int:
        """Agent-loop and reward workers of the host that has most of them."""
        return math.ceil(self.helpers / self.nodes)

    @property
    def scores_here(self) -> bool:
        """Whether samples are scored on the trainer's accelerators by scorers whose memory is known."""
        return self.scorers > 0 and self.generation is not None

    @property
    def scorers_per_rank(self) -> int:
        """Reward workers on the accelerator that has most of them."""
        return math.ceil(self.scorers / self.ranks)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a run: bytes by part."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of a job.

    Attributes:
        device: phases on each accelerator; none on the CPU.
        host: phases on the host of the driver, which needs the most.
        moved: bytes that one training step moves, by what moves.
    """

    device: tuple[Phase, ...]
    host: tuple[Phase, ...]
    moved: Mapping[str, int]


def estimate(setup: Setup, trainer: TrainerMemory, engine: EngineMemory) -> Estimate:
    """Put the parts of one device together, by phase, for an engine on the trainer's device."""
    weights = awake(setup, trainer, engine)
    kept = {} if setup.sleeps else kept_by_engine(setup, engine)
    idle = {} if setup.sleeps else weights | kept  # while others work
    engine_parts = {
        setup.generation: {**weights, "engine activations": engine.peak if setup.sleeps else engine.held},
        "weight sync": {**weights, **receiving(setup, trainer), **kept},
    }
    phases = [Phase(name, parts | engine_parts.get(name, idle)) for name, parts in on_device(setup, trainer).items()]
    if encodes_apart(setup, engine):
        encoders = encoding_prompts(engine, 0 if setup.sleeps else engine.held)
        phases.insert(0, Phase(TEXT_ENCODING, {**resting(setup, trainer), **weights, **encoders}))
    moved = {**bytes_of_a_step(setup, trainer), "weights to each engine": trainer.sent}
    if not setup.accelerator:
        always = {**encoders_at_rest(setup, trainer), **checkpoint_copy(setup, trainer), **scorers_on_cpu(setup)}
        hosts = (_on_host(setup, Phase(phase.name, {**phase.parts, **always})) for phase in phases)
        return Estimate((), tuple(hosts), moved)
    return Estimate(
        with_contexts(phases, 2 + setup.scorers_per_rank), without_zeros(_host(setup, trainer, engine)), moved
    )


def fits(peak: int, capacity: int) -> bool:
    """Whether a device with `capacity` bytes holds `peak` bytes and the reserve."""
    return peak <= capacity * (1 - RESERVE)


def on_device(setup: Setup, trainer: TrainerMemory) -> dict[str, dict[str, int]]:
    """The trainer's memory on the device, by phase."""
    phases = {}
    if setup.generation is not None:
        phases[setup.generation] = resting(setup, trainer)
    if setup.scores_here:
        phases["scoring"] = resting(setup, trainer) | scoring(setup)
    if setup.pairs:
        phases["encoding"] = encoding(setup, trainer)
    return {**phases, "update": updating(setup, trainer), "weight sync": sending(setup, trainer)}


def resting(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """The trainer's memory on the device between updates."""
    away = setup.accelerator and setup.offloads_weights
    return {
        "weights": 0 if away else trainer.weights,
        "delayed copies": 0 if away else trainer.delayed_copies,
        "base model": 0 if away else trainer.reference,
        "optimizer": 0 if setup.accelerator and setup.offloads_optimizer else trainer.optimizer,
    }


def scoring(setup: Setup) -> dict[str, int]:
    """Memory on the trainer's device of the scorers that share it, while they score a batch."""
    return {
        "reward models": setup.scorers_per_rank * setup.scorer_weights,
        "reward activations": setup.scorers_per_rank * setup.scorer_activations,
    }


def scorers_on_cpu(setup: Setup) -> dict[str, int]:
    """CPU memory of these scorers, for each rank without an accelerator."""
    return {"reward models": setup.scorers_per_rank * setup.scorer_weights}


def encoders_at_rest(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """CPU memory of a rank's encoders of pairs, except while they run on an accelerator."""
    return {ENCODERS: trainer.encoders if setup.pairs else 0}


def encoding(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """The trainer's memory on the device while it encodes the pairs of a step, before the update."""
    moved = trainer.encoders if setup.accelerator else 0
    return {**resting(setup, trainer), ENCODERS: moved, "activations": trainer.encoding}


def updating(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """The trainer's memory on the device in an update."""
    return {
        "weights": trainer.weights,
        "delayed copies": trainer.delayed_copies,
        "base model": trainer.reference,
        "optimizer": trainer.optimizer,
        "gradients": trainer.gradients,
        "gathered weights": trainer.gathered,
        START_VALUES: 0 if setup.accelerator else trainer.start_values,
        setup.trains_on: trainer.inputs,
        "activations": max(trainer.activations, trainer.step_temporary - trainer.inputs),
    }


def sending(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """The trainer's memory on the device while it sends weights: all weights, and the tensor being sent."""
    cast = trainer.largest_sent if trainer.largest_sent != trainer.largest else 0
    return {
        **resting(setup, trainer),
        "weights": trainer.weights,
        "delayed copies": trainer.delayed_copies,
        "base model": trainer.reference,
        "tensor to send": trainer.largest + cast,
    }


def awake(setup: Setup, trainer: TrainerMemory, engine: EngineMemory) -> dict[str, int]:
    """Weights of the engine on the device."""
    return {
        "engine transformer": engine.transformer,
        "engine adapter": trainer.whole_trained if setup.sends_adapter else 0,
        "text encoders": engine.text_encoders,
        "VAE": engine.vae,
    }


def encodes_apart(setup: Setup, engine: EngineMemory) -> bool:
    """Whether prompts are encoded in a separate phase, in which text encoders come from CPU memory."""
    return setup.accelerator and setup.generation is not None and engine.offloaded > 0


def encoding_prompts(engine: EngineMemory, kept: int) -> dict[str, int]:
    """Memory of an engine, in addition to its weights, while it encodes prompts that its cache does not have.

    Args:
        kept: memory that its allocator keeps from earlier passes.
    """
    return {"text encoders": engine.offloaded, "engine activations": max(engine.passes.get(TEXT_ENCODING, 0), kept)}


def receiving(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """Memory of a weight update next to an engine: the buffer, and the adapter until it is bound."""
    return {"weight buffer": bucket(setup, trainer), "staged adapter": trainer.sent if setup.sends_adapter else 0}


def bucket(setup: Setup, trainer: TrainerMemory) -> int:
    """Bytes of the largest bucket of a weight update; a tensor that exceeds the limit gets a separate bucket."""
    return max(trainer.largest_sent, min(setup.bucket, trainer.sent))


def kept_by_engine(setup: Setup, engine: EngineMemory) -> dict[str, int]:
    """Memory from its passes that the allocator of an engine on an accelerator keeps until the engine sleeps."""
    return {"engine activations": engine.held} if setup.accelerator and setup.generation else {}


def _host(setup: Setup, trainer: TrainerMemory, engine: EngineMemory) -> tuple[Phase, ...]:
    """Phases of a host whose ranks have accelerators; the driver runs there."""
    ranks = setup.ranks_per_node
    # A trainer and an engine worker for each rank; server and driver.
    processes = 2 * ranks + 2 + setup.helpers_per_node
    always = {
        **on_trainer_host(setup, trainer, processes),
        # torch keeps the memory that it has pinned for sleeping engines when they are awake again.
        "engine weights asleep": ranks * engine.asleep if setup.sleeps else 0,
        "text encoders at rest": ranks * engine.offloaded,
    }
    # Before pairs are encoded, everything that moves to the device is in CPU memory.
    names = host_phases(setup)
    return (
        starting(setup, trainer, processes),
        *(Phase(name, {**always, **to_score(setup, name), **offloaded(setup, trainer)}) for name in names),
        Phase("update", always | before_update(setup, trainer)),
    )


def starting(setup: Setup, trainer: TrainerMemory, processes: int) -> Phase:
    """The phase of a trainer's host in which its ranks load their weights."""
    loaded = setup.ranks_per_node * trainer.loading
    return Phase("start", {"processes": processes * setup.process, "weights as loaded": loaded})


def on_trainer_host(setup: Setup, trainer: TrainerMemory, processes: int) -> dict[str, int]:
    """CPU memory of a trainer's host in every phase after the start, except for what is offloaded."""
    of_ranks = {**checkpoint_copy(setup, trainer), **encoders_at_rest(setup, trainer)}
    scorers = math.ceil(setup.scorers / setup.nodes) if setup.accelerator else 0  # else they are not at rest
    return {
        "processes": processes * setup.process,
        setup.trains_on: trajectories(setup),
        **{name: setup.ranks_per_node * size for name, size in of_ranks.items()},
        "reward models at rest": scorers * setup.scorer_weights,
    }


def offloaded(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """CPU memory of a trainer's host for what its ranks offload between updates."""
    kept = trainer.weights + trainer.delayed_copies + trainer.reference
    return {
        "offloaded weights": setup.ranks_per_node * kept if setup.offloads_weights else 0,
        "offloaded optimizer": setup.ranks_per_node * trainer.optimizer if setup.offloads_optimizer else 0,
    }


def host_phases(setup: Setup) -> tuple[str, ...]:
    """Names of the phases before an update."""
    named = {setup.generation: setup.generation, "scoring": setup.scores_here, "encoding": setup.pairs}
    return tuple(name for name, there in named.items() if name is not None and there)


def before_update(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """CPU memory, on a host with accelerators, for its ranks' values from the policy before an update."""
    return {START_VALUES: setup.ranks_per_node * trainer.start_values}


def checkpoint_copy(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """CPU memory of a rank while a checkpoint is written in the background."""
    copied = trainer.trained + trainer.optimizer + trainer.delayed_copies
    return {"checkpoint copy": copied if setup.copies_checkpoints else 0}


def trajectories(setup: Setup) -> int:
    """Samples on one host, if it has all of them in its object store, and the copies that its ranks load.

    Of pairs, the images on the driver's host, and what its ranks have encoded.
    """
    return setup.pairs + (1 + setup.ahead) * setup.stored + math.ceil(setup.trained / setup.nodes)


def to_score(setup: Setup, phase: str) -> dict[str, int]:
    """Object store memory if one host has all of it, and scoring starts after all samples are generated."""
    return {"samples to score": setup.waiting if phase in (setup.generation, "scoring") else 0}


def _on_host(setup: Setup, phase: Phase) -> Phase:
    """A phase of all ranks of a host without accelerators."""
    ranks = setup.ranks_per_node
    parts = {name: ranks * size for name, size in phase.parts.items()}
    samples = parts.get(setup.trains_on, 0) + trajectories(setup)
    processes = (ranks + 2 + setup.helpers_per_node) * setup.process
    of_host = {**to_score(setup, phase.name), setup.trains_on: samples, "processes": processes}
    return without_zeros([Phase(phase.name, {**parts, **of_host})])[0]


def with_contexts(phases: Sequence[Phase], processes: int) -> tuple[Phase, ...]:
    """Phases of a device, with what its processes take before their first tensors."""
    contexts = {"device contexts": processes * DEVICE_CONTEXT}
    return without_zeros([Phase(phase.name, {**phase.parts, **contexts}) for phase in phases])


def without_zeros(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Phases without empty parts."""
    return tuple(Phase(p.name, {name: size for name, size in p.parts.items() if size}) for p in phases)


def bytes_of_a_step(setup: Setup, trainer: TrainerMemory) -> dict[str, int]:
    """Bytes that one training step moves, excluding the weight update."""
    trained = trainer.calls * (2 if setup.regathers else 1) * trainer.backward_passes * setup.updates
    gathers = trained + trainer.evaluations
    samples = {
        "samples to the object store": setup.stored,
        "samples to the trainers": setup.trained,
        "pixels to the reward workers": setup.samples * setup.pixels,
    }
    return {
        **({"images of pairs to the trainers": setup.pairs} if setup.pairs else samples),
        "weights gathered by each rank": gathers * trainer.computed * (trainer.shards - 1) // trainer.shards,
    }
