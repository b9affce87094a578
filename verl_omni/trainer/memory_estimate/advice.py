"""Advice on the memory of a job: which settings to change if it does not fit, and which it does not need if it does.

Each is tried on the estimate.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.settings_schema import engine_settings
from verl_omni.trainer.settings import pool_settings, scorer_devices
from verl_omni.workers.algorithms.base import training_algorithm

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LORA_RANK = 32
HALF = "bfloat16"
MOST_ACCELERATORS = 8  # per node
# Samples are not made smaller than this. Sides that are multiples of the step suit every model family.
SMALLEST_SIDE = 256
SIDE_STEP = 32
ENGINES = "; needs spec.rollout.replicas: "
NOTICEABLE = 0.98  # a change that leaves more of a phase is no advice


@dataclass(frozen=True, slots=True)
class Change:
    """A setting to change.

    Attributes:
        costs: description of the change's cost, for the user.
    """

    setting: str
    value: Any
    costs: str


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, and the peak with it and all changes before it, in bytes.

    Attributes:
        phase: the phase that the change lowers the most, of those that do not fit.
    """

    change: Change
    phase: str
    peak: int
    fits: bool


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """A change that takes more memory and less time, after which the job still fits, and the peak with it, in bytes."""

    change: Change
    peak: int


def of_rollout(setting: str) -> bool:
    """Whether a setting may lower the peak of a pool that has only engines."""
    return setting.startswith(f"{ROLLOUT}.")


def of_trainer(setting: str) -> bool:
    """Whether a setting may lower the peak of a pool that has only trainers."""
    return not of_rollout(setting) or setting.startswith(f"{ROLLOUT}.pipeline.")


def advise(
    config: DictConfig,
    phases: Mapping[str, int],
    phases_of: Callable[[DictConfig], Mapping[str, int]],
    fits: Callable[[int], bool],
    concerns: Callable[[str], bool] = lambda _: True,
    divisible: int = 0,
) -> tuple[Advice, ...]:
    """Changes that lower the phases that do not fit, one after the other until all fit or no change is left.

    Args:
        phases: bytes of each phase of `config`.
        phases_of: the same with other settings.
        concerns: whether a setting is to be tried.
        divisible: what the tensor parallel size of an engine must divide; 0: unknown.
    """
    phases_of = _remembered(phases_of)  # an estimate of a large model takes seconds
    job = config
    first = phases
    advised = list[Advice]()
    tried: set[tuple[str, Any]] = set()
    while not fits(max(phases.values())):
        left = (untried for untried in changes(config, divisible) if (untried.setting, untried.value) not in tried)
        change = next((candidate for candidate in left if concerns(candidate.setting)), None)
        if change is None:
            break
        tried.add((change.setting, change.value))
        changed = _with(config, [change])
        after = phases_of(changed)
        if (phase := _lowered(phases, after, fits)) is not None:
            config = changed
            phases = after
            peak = max(after.values())
            if advised and advised[-1].change.setting == change.setting:
                advised.pop()  # the new value replaces it
            advised.append(Advice(change, phase, peak, fits(peak)))
    needed = _needed(job, advised, phases_of, fits)
    return tuple(advised if len(needed) == len(advised) else _replay(job, needed, first, phases_of, fits))


def not_needed(
    config: DictConfig,
    phases_of: Callable[[DictConfig], Mapping[str, int]],
    fits: Callable[[int], bool],
    concerns: Callable[[str], bool] = lambda _: True,
) -> tuple[NotNeeded, ...]:
    """What a job that fits could switch off, one after the other; arguments as of `advise`."""
    switched_off = []
    for change in _savings(config):
        if concerns(change.setting):
            changed = _with(config, [change])
            peak = max(phases_of(changed).values())
            if fits(peak):
                config = changed
                switched_off.append(NotNeeded(change, peak))
    return tuple(switched_off)


def _savings(config: DictConfig) -> Iterator[Change]:
    """Settings that save memory and cost time, to switch off; the one that costs most first."""
    fsdp = config.actor_rollout_ref.actor.fsdp_config
    rollout = config.actor_rollout_ref.rollout
    if not _on_accelerators(rollout):
        return
    for name in ("optimizer_offload", "param_offload"):
        if fsdp[name]:
            yield Change(f"{ACTOR}.fsdp_config.{name}", False, "copies to host memory in each step")
    asleep = rollout.free_cache_engine and rollout.enable_sleep_mode
    if rollout.nnodes == 0 and asleep and not scorer_devices.needs_engines_asleep(config):
        yield Change(f"{ROLLOUT}.free_cache_engine", False, "the engine sleeps and wakes in each step")
    if rollout.offload_text_encoders:
        costs = "text encoders move to the accelerator for prompts that the cache does not have"
        yield Change(f"{ROLLOUT}.offload_text_encoders", False, costs)


def _needed(
    config: DictConfig,
    found: list[Advice],
    phases_of: Callable[[DictConfig], Mapping[str, int]],
    fits: Callable[[int], bool],
) -> list[Change]:
    """The changes without those that a later one makes needless; of these, the ones that cost most go first.

    Two changes that name the number of engines are both kept, because the later one depends on the earlier one.
    """
    kept = [candidate.change for candidate in found]
    if not found or not found[-1].fits:
        return kept
    counted = sum(ENGINES in candidate.costs for candidate in kept) > 1
    for change in [candidate for candidate in reversed(kept[:-1]) if not (counted and ENGINES in candidate.costs)]:
        fewer = [candidate for candidate in kept if candidate is not change]
        if fits(max(phases_of(_with(config, fewer)).values())):
            kept = fewer
    return kept


def _replay(
    config: DictConfig,
    needed: list[Change],
    phases: Mapping[str, int],
    phases_of: Callable[[DictConfig], Mapping[str, int]],
    fits: Callable[[int], bool],
) -> Iterator[Advice]:
    """The same changes with the peaks that they lead to one after the other."""
    for change in needed:
        config = _with(config, [change])
        after = phases_of(config)
        peak = max(after.values())
        yield Advice(change, _lowered(phases, after, fits) or max(phases, key=phases.__getitem__), peak, fits(peak))
        phases = after


def _remembered(phases_of: Callable[[DictConfig], Mapping[str, int]]) -> Callable[[DictConfig], Mapping[str, int]]:
    known: dict[str, Mapping[str, int]] = {}

    def remembered(config: DictConfig) -> Mapping[str, int]:
        key = OmegaConf.to_yaml(config)
        if key not in known:
            known[key] = phases_of(config)
        return known[key]

    return remembered


def _with(config: DictConfig, changed: list[Change]) -> DictConfig:
    copy = config.copy()
    for change in changed:
        OmegaConf.update(copy, change.setting, change.value)
    return copy


def _lowered(before: Mapping[str, int], after: Mapping[str, int], fits: Callable[[int], bool]) -> str | None:
    """The phase that a change lowers the most, of those that do not fit; None if it lowers none, or if it raises one.

    The peak alone does not tell: a change that lowers another phase is needed too, if that phase does not fit.
    """
    if any(size > before.get(name, 0) and not fits(size) for name, size in after.items()):
        return None
    saved = {name: size - after.get(name, 0) for name, size in before.items() if not fits(size)}
    noticeable = [name for name in saved if after.get(name, 0) < NOTICEABLE * before[name]]
    return max(noticeable, key=saved.__getitem__, default=None)


def changes(config: DictConfig, divisible: int = 0) -> Iterator[Change]:
    """Changes that may lower the peak of these settings, those that cost least first.

    Args:
        divisible: what the tensor parallel size of an engine must divide; 0: unknown.
    """
    settings = config.actor_rollout_ref
    model = settings.model
    actor = settings.actor
    rollout = settings.rollout
    for name in ("free_cache_engine", "enable_sleep_mode"):
        if rollout.nnodes == 0 and _on_accelerators(rollout) and not rollout[name]:
            yield Change(f"{ROLLOUT}.{name}", True, "the engine sleeps during updates")
            break
    if rollout.prompt_cache_dir and not rollout.offload_text_encoders and _on_accelerators(rollout):
        costs = "text encoders move to the accelerator for prompts that the cache does not have"
        yield Change(f"{ROLLOUT}.offload_text_encoders", True, costs)
    micro = actor.ppo_micro_batch_size_per_gpu
    if micro is None or micro > 1:
        yield Change(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1, "more, smaller passes")
    if not model.enable_gradient_checkpointing:
        yield Change(f"{MODEL}.enable_gradient_checkpointing", True, "one more forward pass in each update")
    for size in (16, 4, 1):
        if rollout.max_num_seqs > size:
            of_engine = rollout.engine_kwargs.vllm_omni.get("max_num_seqs") is not None
            name = engine_settings.BATCH if of_engine else f"{ROLLOUT}.max_num_seqs"
            yield Change(name, size, "smaller batches of the engine")
            break
    for size in (8, 1):
        if scorer_devices.sharing(config.reward) and config.reward.batch_size > size:
            yield Change("reward.batch_size", size, "smaller batches of the scorers on the trainer's accelerators")
            break
    if actor.fsdp_config.mixed_precision.param_dtype != HALF:
        yield Change(f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", HALF, "the model computes in bfloat16")
    if rollout.dtype != HALF:
        yield Change(f"{ROLLOUT}.dtype", HALF, "the engine computes in bfloat16")
    if _can_be_split(config, divisible):
        size = 2 * rollout.tensor_model_parallel_size
        costs = f"fewer engines, each of more accelerators{_engines(config, config.trainer.n_gpus_per_node, 2)}"
        yield Change(f"{ROLLOUT}.tensor_model_parallel_size", size, costs)
    if actor.fsdp_config.use_no_sync_for_gradient_accumulation and model.lora_rank == 0:
        name = f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation"
        yield Change(name, False, "gradients are reduced after each micro-batch")
    for setting in ("optimizer_offload", "param_offload"):
        if not actor.fsdp_config[setting]:
            yield Change(f"{ACTOR}.fsdp_config.{setting}", True, "copies to host memory in each step, which needs it")
    if model.lora_rank == 0:
        yield Change(f"{MODEL}.lora_rank", LORA_RANK, "an adapter is trained instead of all weights")
    count = 2 * config.trainer.n_gpus_per_node
    if count <= MOST_ACCELERATORS and _divides_batch(config, config.trainer.nnodes * count):
        yield Change("trainer.n_gpus_per_node", count, f"accelerators{_engines(config, count)}")
    for side in ("height", "width"):
        if rollout.pipeline[side] > SMALLEST_SIDE:
            half = max(SMALLEST_SIDE, rollout.pipeline[side] // 2 // SIDE_STEP * SIDE_STEP)
            yield Change(f"{ROLLOUT}.pipeline.{side}", half, "smaller samples")


def _on_accelerators(rollout: DictConfig) -> bool:
    """Whether engines are on accelerators; on the CPU nothing of an engine can sleep or be split."""
    return bool(rollout.engine_kwargs.vllm_omni.distributed_executor_backend != "uni")


def _engines(config: DictConfig, accelerators: int, times: int = 1) -> str:
    """The number of engines that a job must name, which share the trainer's accelerators; empty with their own.

    Args:
        accelerators: accelerators of each trainer node.
        times: how many times as many accelerators an engine gets.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.nnodes > 0:
        return ""
    engines = config.trainer.nnodes * accelerators // (times * pool_settings.replica_size(rollout))
    return f"{ENGINES}{engines}"


def _can_be_split(config: DictConfig, divisible: int) -> bool:
    """Whether engines can have twice as many accelerators each, which must be of one node and divide the layers."""
    rollout = config.actor_rollout_ref.rollout
    count = rollout.n_gpus_per_node if rollout.nnodes > 0 else config.trainer.n_gpus_per_node
    divides = divisible % (2 * rollout.tensor_model_parallel_size) == 0
    return bool(_on_accelerators(rollout) and divides and count % (2 * pool_settings.replica_size(rollout)) == 0)


def _divides_batch(config: DictConfig, ranks: int) -> bool:
    """Whether `ranks` ranks get equal shares of the samples of a step, and of the rows of an optimizer step."""
    actor = config.actor_rollout_ref.actor
    n = config.actor_rollout_ref.rollout.n
    rows = training_algorithm(actor.diffusion_loss.loss_mode).rows_per_prompt(n)
    return config.data.train_batch_size * n % ranks == 0 == actor.ppo_mini_batch_size * rows % ranks
