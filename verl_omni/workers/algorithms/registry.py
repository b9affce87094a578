"""Registry of the training algorithms: the settings that each requires, and the module that implements it.

To add one here: a module of this package, an entry in `ALGORITHMS` named like its `loss_mode`, and its settings with
their defaults in `verl_omni/trainer/config/loss/<loss_mode>.yaml`. Users add theirs with `verl_omni.extensions`.

Importing the registry imports neither torch nor verl: the trainer checks its settings before it sets the environment
variables that they read when they are imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from verl_omni.algos import rejection_settings, window_bounds
from verl_omni.utils.registry import Registry
from verl_omni.workers.actor.setting_checks import SEQUENCE_PARALLEL, sequence_groups
from verl_omni.workers.algorithms.other_names import OTHER_NAMES

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"
DEFAULT = "flow_grpo"
UNREAD_THRESHOLD = 2.0  # default of rollout_is_threshold
DECAY_SCHEDULES = (None, "copy", "delayed_linear_to_0_999")  # verl_omni/algos/nft.py


@dataclass(frozen=True, slots=True)
class RequiredSetting:
    """A setting that must have one value with an algorithm, and why."""

    name: str
    value: Any
    reason: str

    def conflict(self, found: Any, loss: str) -> str | None:
        """Message about a wrong value, as `drl validate` prints it; None if it is the required one."""
        if found == self.value:
            return None
        given = plain_value(found)
        needed = plain_value(self.value)
        return f"{self.name}: {given} does not go with {loss}: {self.reason}; it needs {needed}"


def plain_value(value: Any) -> str:
    """A value as users write it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class RegisteredAlgorithm:
    """Description of an algorithm that does not need its import.

    Attributes:
        implementation: import path of the class.
        required: settings that must have one value.
        row: what a row of a training batch is: `sample`, or a `pair` of samples of one prompt.
        conflicts: settings -> a message for each that the algorithm cannot use.
        like: for a user's algorithm, the built-in one with the same settings outside `diffusion_loss`.
        loss: import path of a user's policy loss, which replaces the loss of `implementation`.
    """

    implementation: str
    required: tuple[RequiredSetting, ...]
    conflicts: Callable[[DictConfig], Sequence[str]]
    row: Literal["sample", "pair"] = "sample"
    like: str | None = None
    loss: str | None = None

    @property
    def on_recorded_steps(self) -> bool:
        """Whether it trains on recorded steps of the sampler."""
        return any(each.name.endswith(".calculate_log_probs") and each.value for each in self.required)

    def rows_per_prompt(self, samples: int) -> int:
        """Rows that the samples of one prompt make."""
        return samples if self.row == "sample" else 1


def _flow_grpo_conflicts(config: DictConfig) -> Sequence[str]:
    found = []
    name = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
    if config.actor_rollout_ref.rollout.algo.noise_level <= 0:
        found.append(f"{ROLLOUT}.algo.noise_level: must be positive: {name} learns from noise")
    if config.trainer.max_log_prob_difference is None:
        found.append(f"trainer.max_log_prob_difference: {name} needs a number")
    velocities = config.trainer.max_velocity_difference
    if velocities is not None and (not isinstance(velocities, int | float) or not velocities > 0):
        found.append(f"trainer.max_velocity_difference: must be a positive number or null: {velocities}")
    return [*found, *_fraction_conflicts(config.algorithm.timestep_fraction), *_correction_conflicts(config)]


def _fraction_conflicts(fraction: object) -> Sequence[str]:
    if isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 < fraction <= 1:
        return []
    return [f"algorithm.timestep_fraction: must be above 0 and at most 1: {fraction}"]


def _grpo_guard_conflicts(config: DictConfig) -> Sequence[str]:
    found = list(_flow_grpo_conflicts(config))
    if config.actor_rollout_ref.rollout.algo.sde_type == "cps":
        found.append(
            f"{ROLLOUT}.algo.sde_type: cps does not go with grpo_guard, which divides by the noise of each step; write "
            "sde or dance_sde"
        )
    return found


def _correction_conflicts(config: DictConfig) -> Sequence[str]:
    settings = config.algorithm.rollout_correction or {}
    found = []
    level = settings.get("rollout_is")
    threshold = settings.get("rollout_is_threshold")
    if not isinstance(threshold, int | float) or isinstance(threshold, bool) or threshold <= 0:
        found.append(
            f"{CORRECTION}.rollout_is_threshold: {threshold} is not a positive number; weights above it are reduced to "
            "it, and there is no lower limit"
        )
    elif level is None and threshold != UNREAD_THRESHOLD:
        found.append(f"{CORRECTION}.rollout_is_threshold: {threshold} is not read without {CORRECTION}.rollout_is")
    option = settings.get("rollout_rs")
    limit = settings.get("rollout_rs_threshold")
    if option is None and limit is not None:
        found.append(f"{CORRECTION}.rollout_rs_threshold: {limit} is not read without {CORRECTION}.rollout_rs")
    if option is not None:
        try:
            rejection_settings.parse(option, limit)
        except ValueError as error:
            found.append(f"{CORRECTION}.rollout_rs: {error}")
    return found


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(plain_value(value) for value in values)


def _diffusion_nft_conflicts(config: DictConfig) -> Sequence[str]:
    found = []
    schedule = config.algorithm.old_policy_decay_schedule
    interval = config.algorithm.old_policy_update_interval
    if schedule not in DECAY_SCHEDULES:
        found.append(
            f"algorithm.old_policy_decay_schedule: {schedule} is not supported; write {_listed(DECAY_SCHEDULES)}"
        )
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        found.append(f"algorithm.old_policy_update_interval: must be a whole number from 1: {interval}")
    fraction = config.algorithm.timestep_fraction
    return [*found, *([] if fraction is None else _fraction_conflicts(fraction))]


def _diffusion_dpo_conflicts(config: DictConfig) -> Sequence[str]:
    if config.algorithm.sample_source == "online" and config.actor_rollout_ref.rollout.n < 2:
        return [f"{ROLLOUT}.n: diffusion_dpo compares samples of one prompt: at least 2 are needed"]
    return []


def _noise_conflicts(config: DictConfig) -> Sequence[str]:
    rollout = config.actor_rollout_ref.rollout
    found = []
    if rollout.algo.init_same_noise and rollout.algo.noise_level <= 0:
        found.append(
            f"{ROLLOUT}.algo.init_same_noise: without noise in the steps (algo.noise_level=0), all samples of a prompt "
            "would be the same; write false"
        )
    return found


def _window_conflicts(config: DictConfig, *, on_recorded_steps: bool) -> Sequence[str]:
    algo = config.actor_rollout_ref.rollout.algo
    steps = config.actor_rollout_ref.rollout.pipeline.num_inference_steps
    if algo.noise_level <= 0:
        return []  # no step has noise
    if algo.sample_strategy == "progressive" and not algo.sde_contiguous:
        return [f"{ROLLOUT}.algo.sde_contiguous: {window_bounds.SCATTERED_PROGRESSIVE}"]
    if algo.sde_window_size is None and algo.sde_window_range is None:
        if config.algorithm.adv_estimator == "mix_grpo":
            return [f"{ROLLOUT}.algo.sde_window_size: mix_grpo trains on a window of the steps; write how many it has"]
        if steps == 1:
            name = f"{ROLLOUT}.pipeline.num_inference_steps"
            return [f"{name}: must be at least 2: noise is in all steps but the last (algo.sde_window_range: [0, 1])"]
    try:
        window_bounds.resolve(steps, algo.sde_window_size, algo.sde_window_range)
    except ValueError as error:
        return [f"{ROLLOUT}.algo.sde_window_size: {error}"]
    at_end = algo.sde_window_range is not None and algo.sde_window_range[1] == steps
    if on_recorded_steps and algo.sde_type == "cps" and at_end:
        return [
            f"{ROLLOUT}.algo.sde_window_range: {list(algo.sde_window_range)} contains the last of {steps} steps, where "
            "cps adds no noise; end the range before it"
        ]
    return []


def _rank_conflicts(config: DictConfig, entry: RegisteredAlgorithm) -> Sequence[str]:
    """Rows that the ranks cannot share evenly, of a training step and of a mini-batch."""
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    found = []
    try:
        groups = sequence_groups(ranks, OmegaConf.select(config, SEQUENCE_PARALLEL))
    except ValueError as error:
        return [str(error)]
    sharing = f"{ranks} ranks" if groups == ranks else f"{groups} groups of ranks"
    per_prompt = entry.rows_per_prompt(config.actor_rollout_ref.rollout.n)
    for name in ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"):
        rows = OmegaConf.select(config, name) * per_prompt
        if rows % groups != 0:
            found.append(f"{name}: {sharing} cannot share {rows} {entry.row}s evenly; write another number")
    return found


_ONLINE = RequiredSetting("algorithm.sample_source", "online", "it trains on samples of the engine")
_TRAINED_POLICY_SAMPLES = RequiredSetting(f"{ROLLOUT}.rollout_adapter", "default", "the trained policy must sample")
_WITHOUT_LIKELIHOOD = (
    RequiredSetting(f"{ROLLOUT}.calculate_log_probs", False, "it uses no log-probabilities"),
    RequiredSetting("trainer.max_log_prob_difference", None, "there are no log-probabilities to compare"),
    RequiredSetting("trainer.max_velocity_difference", None, "there are no velocities to compare"),
    RequiredSetting(f"{ROLLOUT}.algo.clean_latents", True, "it learns from final latents"),
    RequiredSetting(f"{ACTOR}.use_kl_loss", False, "only flow_grpo, grpo_guard and flow_dppo have a KL loss"),
    RequiredSetting(f"{CORRECTION}.bypass_mode", False, "there are no log-probabilities to recompute"),
    RequiredSetting(f"{CORRECTION}.rollout_is", None, "there are no log-probabilities to compare"),
    RequiredSetting(f"{CORRECTION}.rollout_rs", None, "there are no log-probabilities to compare"),
    RequiredSetting(f"{CORRECTION}.rollout_rs_threshold", None, "it is not read"),
    RequiredSetting(f"{CORRECTION}.rollout_is_threshold", UNREAD_THRESHOLD, "it is not read"),
)
_WITHOUT_STEPS = RequiredSetting("algorithm.timestep_fraction", 1.0, "it trains on random noise levels")
_WITHOUT_ADVANTAGES = RequiredSetting("algorithm.adv_estimator", "flow_grpo", "it orders samples without advantages")
_LIKELIHOOD = (
    RequiredSetting(f"{ROLLOUT}.calculate_log_probs", True, "it compares log-probabilities"),
    _TRAINED_POLICY_SAMPLES,
    _ONLINE,
)
_RECOMPUTED_MEANS = RequiredSetting(
    f"{CORRECTION}.bypass_mode", False, "the engine does not record the means of its steps"
)
_HERE = "verl_omni.workers.algorithms"
_OWN = {
    "flow_grpo": RegisteredAlgorithm(f"{_HERE}.flow_grpo:FlowGRPO", _LIKELIHOOD, _flow_grpo_conflicts),
    "diffusion_nft": RegisteredAlgorithm(
        f"{_HERE}.diffusion_nft:DiffusionNFT",
        (
            *_WITHOUT_LIKELIHOOD,
            _ONLINE,
            RequiredSetting(f"{ROLLOUT}.rollout_adapter", "old", "the old policy must sample"),
            RequiredSetting(f"{MODEL}.policy_state_adapters", ["default", "old"], "it keeps an old policy"),
        ),
        _diffusion_nft_conflicts,
    ),
    "diffusion_dpo": RegisteredAlgorithm(
        f"{_HERE}.diffusion_dpo:DiffusionDPO",
        (*_WITHOUT_LIKELIHOOD, _TRAINED_POLICY_SAMPLES, _WITHOUT_ADVANTAGES, _WITHOUT_STEPS),
        _diffusion_dpo_conflicts,
        row="pair",
    ),
    "grpo_guard": RegisteredAlgorithm(
        f"{_HERE}.grpo_guard:GRPOGuard",
        (*_LIKELIHOOD, _RECOMPUTED_MEANS),
        _grpo_guard_conflicts,
    ),
    "flow_dppo": RegisteredAlgorithm(
        f"{_HERE}.flow_dppo:FlowDPPO", (*_LIKELIHOOD, _RECOMPUTED_MEANS), _flow_grpo_conflicts
    ),
}
ALGORITHMS = Registry("algorithm", _OWN)


def optimizer_steps(config: DictConfig) -> int:
    """Optimizer steps of the whole run: each training step takes one for each mini-batch, `ppo_epochs` times."""
    actor = config.actor_rollout_ref.actor
    mini_batches = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size)
    return int(config.trainer.total_training_steps * mini_batches * actor.ppo_epochs)


def check_name(name: str) -> None:
    """Refuse an algorithm that is not registered.

    Raises:
        ValueError: there is none of this name; the message lists the names, or says what the name stands for.
    """
    if name in ALGORITHMS:
        return
    if meant := OTHER_NAMES.get(name):
        others = " and ".join(meant.defaults)
        raise ValueError(f"{name} is {meant.algorithm} with other settings: write {meant.algorithm}, and {others}")
    raise ValueError(f"no algorithm {name!r}; one of {', '.join(ALGORITHMS)}")


def _sampled_for(config: DictConfig, name: str, entry: RegisteredAlgorithm) -> tuple[RequiredSetting, ...]:
    """The setting `model.algorithm`; all algorithms on recorded steps need the same samples."""
    sampled = ALGORITHMS.get(config.actor_rollout_ref.model.algorithm)
    if sampled is not None and sampled.on_recorded_steps and entry.on_recorded_steps:
        return ()
    reason = "the engine must sample for the algorithm that is trained"
    return (RequiredSetting(f"{MODEL}.algorithm", name, reason),)


def setting_conflicts(config: DictConfig) -> list[str]:
    """Settings that the chosen algorithm cannot use: a message for each, with its value and the value it needs."""
    name = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
    entry = ALGORITHMS[name]
    found = []
    for required in (*_sampled_for(config, name, entry), *entry.required):
        value = OmegaConf.select(config, required.name)
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        if text := required.conflict(plain, name):
            found.append(text)
    shared = (*_rank_conflicts(config, entry), *_noise_conflicts(config))
    window = _window_conflicts(config, on_recorded_steps=entry.on_recorded_steps)
    return [*found, *shared, *window, *entry.conflicts(config)]
