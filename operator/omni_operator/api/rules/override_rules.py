"""PURE: overrides that do not go with fields of the job, which the project's trainer refuses at its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omni_operator.api.base import Violation
from omni_operator.api.overrides.override_names import ENGINE, find_wrong_values, read_value, setting_here
from omni_operator.api.spec.rollout import Rollout
from omni_operator.api.spec.training import ENTRYPOINT, ESTIMATORS, LOSSES, OVERRIDE, SOURCE, Algorithm, Trainer
from verl_omni.settings_schema.setting import is_number

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
V1 = "trainer.v1"
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend"
HYBRID = "actor_rollout_ref.hybrid_engine"
FRACTION = "algorithm.timestep_fraction"
LOG_PROBS = "trainer.max_log_prob_difference"
VELOCITY = "trainer.max_velocity_difference"
RESUMED = "trainer.resume_from_path"
WARMUP = f"{ACTOR}.optim.lr_warmup_steps"
WARMUP_SHARE = f"{ACTOR}.optim.lr_warmup_steps_ratio"
FILTER = "data.filter_overlong_prompts"
EPOCHS = "trainer.total_epochs"
DECAY_SCHEDULES = (None, "copy", "delayed_linear_to_0_999")
FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
OFFLOADS = tuple(f"{ENGINE}.enable_{name}_offload" for name in ("cpu", "layerwise"))
SLEEP = f"{ROLLOUT}.enable_sleep_mode"
DIVISORS = (FSDP_SIZE, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")


@dataclass(frozen=True, slots=True)
class _Given:
    """The last override of a setting, by the name that it has here."""

    place: int
    value: Any


def override_violations(algorithm: Algorithm, trainer: Trainer, rollout: Rollout) -> Iterator[Violation]:
    """Overrides that the trainer would refuse because of fields, or because of their range.

    Values that refer to other settings (`${...}`) and overrides of another entry point are not checked.
    """
    if algorithm.entrypoint != ENTRYPOINT or not algorithm.overrides:
        return
    given: dict[str, _Given] = {}
    for place, line in enumerate(algorithm.overrides):
        if match := OVERRIDE.match(line):
            name = setting_here(match[2])
            # The last one counts, also for settings in a group that it replaces.
            given = {other: one for other, one in given.items() if other != name and not other.startswith(f"{name}.")}
            if "${" not in match[3]:
                given[name] = _Given(place, read_value(match[3]))
    values = {name: one.value for name, one in given.items()}
    wrong = dict(find_wrong_values(values, LOSSES.get(algorithm.name)))
    yield from (
        Violation(("algorithm", "overrides", given[name].place), f"{name}: {text}") for name, text in wrong.items()
    )
    given = {name: one for name, one in given.items() if name not in wrong}
    checks = (
        _ranges(given),
        _of_algorithm(given, algorithm.name),
        _ranks(given, trainer),
        _sampler(given, algorithm.name, rollout),
        _pools(given, rollout),
        _ahead(given, rollout),
        _engine(given, rollout),
    )
    for name, text in (found for check in checks for found in check):
        yield Violation(("algorithm", "overrides", given[name].place), f"{name}: {text}")


def _ranges(given: dict[str, _Given]) -> Iterator[tuple[str, str]]:
    steps = _value(given, WARMUP, 0)
    share = _value(given, WARMUP_SHARE, 0)
    if is_number(steps) and is_number(share) and steps > 0 and share > 0:
        yield WARMUP_SHARE, f"is not read with lr_warmup_steps={steps}; write one"
    if _value(given, FILTER) is True and _value(given, EPOCHS) is not None:
        yield EPOCHS, f"with {FILTER}=true the number of prompts is known only after the start; remove it"
    if _value(given, RESUMED) is not None:
        yield RESUMED, "is not read: a job starts from checkpoints of its own run folder (spec.checkpoint.resume)"


def _of_algorithm(given: dict[str, _Given], algorithm: str) -> Iterator[tuple[str, str]]:
    if algorithm == "DiffusionNFT":
        yield from _old_policy(given)
        if _value(given, FRACTION) is not None:  # null: random noise levels
            yield from _fraction(given)
    if algorithm not in ESTIMATORS:
        return
    if _value(given, LOG_PROBS, 1) is None:
        yield LOG_PROBS, f"{algorithm} needs a number"
    velocities = _value(given, VELOCITY)
    if velocities is not None and not (is_number(velocities) and velocities > 0):
        yield VELOCITY, f"must be a positive number or null: {velocities}"
    yield from _fraction(given)


def _fraction(given: dict[str, _Given]) -> Iterator[tuple[str, str]]:
    fraction = _value(given, FRACTION, 1)
    if not is_number(fraction) or not 0 < fraction <= 1:
        yield FRACTION, f"must be above 0 and at most 1: {fraction}"


def _old_policy(given: dict[str, _Given]) -> Iterator[tuple[str, str]]:
    name = "algorithm.old_policy_decay_schedule"
    if (schedule := _value(given, name)) not in DECAY_SCHEDULES:
        values = " or ".join(each or "null" for each in DECAY_SCHEDULES)
        yield name, f"{schedule} is not supported; write {values}"
    name = "algorithm.old_policy_update_interval"
    interval = _value(given, name, 1)
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        yield name, f"must be a whole number from 1: {interval}"


def _ranks(given: dict[str, _Given], trainer: Trainer) -> Iterator[tuple[str, str]]:
    ranks = trainer.accelerators
    for name in DIVISORS:
        size = _value(given, name)
        if name == FSDP_SIZE and (size == -1 or (is_number(size) and size > ranks)):
            continue  # all ranks
        if is_number(size) and (size < 1 or ranks % size):
            yield name, f"{size} does not divide the {ranks} ranks of the trainer, one for each accelerator"


def _sampler(given: dict[str, _Given], algorithm: str, rollout: Rollout) -> Iterator[tuple[str, str]]:
    sampler = rollout.sampler
    window = rollout.sampler.window
    name = f"{ROLLOUT}.algo.init_same_noise"
    if sampler.noise_level == 0:
        if _value(given, name) is True:
            yield (
                name,
                "without noise in the steps (spec.rollout.sampler.noiseLevel is 0), all samples of a prompt would be "
                "the same; write false",
            )
        return
    name = f"{ROLLOUT}.algo.sde_contiguous"
    if window and window.placement_with(algorithm) == "Progressive" and _value(given, name) is False:
        yield name, "a progressive window is contiguous: write true, or spec.rollout.sampler.window.placement Random"


def _pools(given: dict[str, _Given], rollout: Rollout) -> Iterator[tuple[str, str]]:
    backend = _value(given, BACKEND)
    if not rollout.separate:
        if backend not in (None, "naive"):
            yield BACKEND, f"{backend} is for spec.rollout.placement Separate; remove it"
        if _value(given, HYBRID) is False:
            yield HYBRID, "false is for spec.rollout.placement Separate; remove it"
        return
    if backend == "naive":
        yield BACKEND, "naive is for engines on the trainer's accelerators; remove it"
    for name in (f"{ROLLOUT}.free_cache_engine", SLEEP):
        if _value(given, name) is True:
            yield name, "an engine in pods of its own (spec.rollout.placement Separate) never sleeps; remove it"


def _ahead(given: dict[str, _Given], rollout: Rollout) -> Iterator[tuple[str, str]]:
    ahead = rollout.batches_ahead
    if ahead and _value(given, SOURCE) == "offline":
        yield SOURCE, "nothing is generated, so nothing ahead: remove spec.rollout.batchesAhead"
    name = f"{V1}.sampler.max_off_policy_threshold"
    strategy = f"{V1}.sampler.max_off_policy_strategy"
    most = _value(given, name)
    if is_number(most) and 0 < most <= ahead and _value(given, strategy) != "drop":
        yield (
            name,
            f"samples generated {ahead} batches ahead (spec.rollout.batchesAhead) span {ahead + 1} versions, more than "
            f"{most}; raise it, or write {strategy}=drop",
        )


def _engine(given: dict[str, _Given], rollout: Rollout) -> Iterator[tuple[str, str]]:
    """Settings of the engine that others rule out."""
    offloads = [name for name in OFFLOADS if _value(given, name)]
    if len(offloads) > 1:
        yield offloads[0], f"is not read with {offloads[1].rpartition('.')[2]}; write one"
    if offloads and not rollout.separate and _value(given, SLEEP) is not False:
        yield offloads[0], f"an engine's sleep does not free offloaded weights; write {SLEEP}=false"
    ranks = _value(given, f"{ENGINE}.vae_patch_parallel_size", 1)
    size = rollout.engine.tensor_parallel_size
    if is_number(ranks) and ranks > size:
        yield (
            f"{ENGINE}.vae_patch_parallel_size",
            f"{ranks} is more than spec.rollout.engine.tensorParallelSize, which is {size}",
        )


def _value(given: dict[str, _Given], name: str, default: Any = None) -> Any:
    return given[name].value if name in given else default
