"""Description of an algorithm, and the settings that several algorithms need; imports neither torch nor verl."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from verl_omni.algos import rejection_settings
from verl_omni.settings_schema.layout import default_of
from verl_omni.settings_schema.setting import Limit, broken_limit, plain_value

if TYPE_CHECKING:
    from omegaconf import DictConfig

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.diffusion_loss"
MODEL = "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"
# Settings whose value the trainer replaces by the one that the algorithm requires, and says so (`unused_values.py`).
DROPPED = (f"{ROLLOUT}.calculate_log_probs", f"{ACTOR}.use_kl_loss")
THRESHOLD = f"{CORRECTION}.rollout_is_threshold"


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
        written = plain_value(found)
        needed = plain_value(self.value)
        return f"{self.name}: {written} does not go with {loss}: {self.reason}; it needs {needed}"


@dataclass(frozen=True, slots=True)
class JobName:
    """A name in a job.

    Attributes:
        title: what people call it.
        paper: its number on arXiv.
        estimator: value of `algorithm.adv_estimator` that it implies; None: none.
        more: fields of a job that are needed as well, for the table in docs/reference/algorithms.md.
    """

    title: str
    paper: str
    estimator: str | None = None
    more: str = ""


@dataclass(frozen=True, slots=True)
class RegisteredAlgorithm:
    """Description of an algorithm that does not need its import.

    Attributes:
        implementation: import path of the class.
        required: settings that must have one value.
        row: what a row of a training batch is: `sample`, or a `pair` of samples of one prompt.
        conflicts: settings -> a message for each that the algorithm cannot use.
        limits: of the numbers in `diffusion_loss`, by the setting's name there.
        names: names in a job, `spec.algorithm.name`.
        in_reference: whether verl-omni has it, so that its defaults are compared.
        near_base: setting of `diffusion_loss` that keeps the policy near the base model, where `use_kl_loss` does not.
        like: for a user's algorithm, the built-in one with the same settings outside `diffusion_loss`.
        loss: import path of a user's policy loss, which replaces the loss of `implementation`.
    """

    implementation: str
    required: tuple[RequiredSetting, ...]
    conflicts: Callable[[DictConfig], Sequence[str]]
    row: Literal["sample", "pair"] = "sample"
    limits: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    names: Mapping[str, JobName] = field(default_factory=dict)
    in_reference: bool = False
    near_base: str | None = None
    like: str | None = None
    loss: str | None = None

    def conflict(self, setting: str, value: Any, name: str) -> str | None:
        """Why the algorithm, by its name, cannot use a value of a setting; None: it can, or the trainer drops it."""
        wrong = (needed.conflict(value, name) for needed in self.required if needed.name == setting)
        return None if setting in DROPPED else next((text for text in wrong if text), None)

    def out_of_range(self, loss: Any) -> Iterator[str]:
        """What is wrong with the numbers of a loss: one of its settings, and why.

        Args:
            loss: settings as attributes.
        """
        for name, limits in self.limits.items():
            # An algorithm of the user's may have other settings than the one that it is like.
            if text := broken_limit(limits, getattr(loss, name, None)):
                yield f"{name} {text}"

    def problems(self, config: DictConfig) -> list[str]:
        """Messages about settings that the algorithm cannot use, and numbers of its loss that are out of range."""
        wrong = (line.partition(" ") for line in self.out_of_range(config.actor_rollout_ref.actor.diffusion_loss))
        return [*(f"{LOSS}.{name}: {text}" for name, _, text in wrong), *self.conflicts(config)]

    @property
    def on_recorded_steps(self) -> bool:
        """Whether it trains on recorded steps of the sampler."""
        return any(setting.name.endswith(".calculate_log_probs") and setting.value for setting in self.required)

    def rows_per_prompt(self, samples: int) -> int:
        """Rows that the samples of one prompt make."""
        return samples if self.row == "sample" else 1


ONLINE = RequiredSetting("algorithm.sample_source", "online", "it trains on samples of the engine")
TRAINED_POLICY_SAMPLES = RequiredSetting(f"{ROLLOUT}.rollout_adapter", "default", "the trained policy must sample")
WITHOUT_LIKELIHOOD = (
    RequiredSetting(f"{ROLLOUT}.calculate_log_probs", False, "it uses no log-probabilities"),
    RequiredSetting("trainer.max_log_prob_difference", None, "there are no log-probabilities to compare"),
    RequiredSetting("trainer.max_velocity_difference", None, "there are no velocities to compare"),
    RequiredSetting(f"{ROLLOUT}.algo.clean_latents", True, "it learns from final latents"),
    RequiredSetting(f"{ACTOR}.use_kl_loss", False, "only algorithms on recorded steps have a KL loss"),
    RequiredSetting(f"{CORRECTION}.bypass_mode", False, "there are no log-probabilities to recompute"),
    RequiredSetting(f"{CORRECTION}.rollout_is", None, "there are no log-probabilities to compare"),
    RequiredSetting(f"{CORRECTION}.rollout_rs", None, "there are no log-probabilities to compare"),
    RequiredSetting(f"{CORRECTION}.rollout_rs_threshold", None, "it is not read"),
    RequiredSetting(THRESHOLD, default_of(THRESHOLD), "it is not read"),
)
WITHOUT_STEPS = RequiredSetting("algorithm.timestep_fraction", 1.0, "it trains on random noise levels")
WITHOUT_ADVANTAGES = RequiredSetting("algorithm.adv_estimator", "flow_grpo", "it orders samples without advantages")
LIKELIHOOD = (
    RequiredSetting(f"{ROLLOUT}.calculate_log_probs", True, "it compares log-probabilities"),
    TRAINED_POLICY_SAMPLES,
    ONLINE,
)
RECOMPUTED_MEANS = RequiredSetting(
    f"{CORRECTION}.bypass_mode", False, "the engine does not record the means of its steps"
)


def step_conflicts(config: DictConfig) -> Sequence[str]:
    """Messages about settings that an algorithm on recorded steps cannot use."""
    conflicts = []
    name = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
    if config.actor_rollout_ref.rollout.algo.noise_level <= 0:
        conflicts.append(f"{ROLLOUT}.algo.noise_level: must be positive: {name} learns from noise")
    if config.trainer.max_log_prob_difference is None:
        conflicts.append(f"trainer.max_log_prob_difference: {name} needs a number")
    velocities = config.trainer.max_velocity_difference
    if velocities is not None and (not isinstance(velocities, int | float) or not velocities > 0):
        conflicts.append(f"trainer.max_velocity_difference: must be a positive number or null: {velocities}")
    return [*conflicts, *fraction_conflicts(config.algorithm.timestep_fraction), *_correction_conflicts(config)]


def fraction_conflicts(fraction: object) -> Sequence[str]:
    """Messages about an invalid `algorithm.timestep_fraction`."""
    if isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 < fraction <= 1:
        return []
    return [f"algorithm.timestep_fraction: must be above 0 and at most 1: {fraction}"]


def _correction_conflicts(config: DictConfig) -> Sequence[str]:
    settings = config.algorithm.rollout_correction or {}
    conflicts = []
    level = settings.get("rollout_is")
    threshold = settings.get("rollout_is_threshold")
    if not isinstance(threshold, int | float) or isinstance(threshold, bool) or threshold <= 0:
        conflicts.append(
            f"{CORRECTION}.rollout_is_threshold: {threshold} is not a positive number; weights above it are reduced to "
            "it, and there is no lower limit"
        )
    elif level is None and threshold != default_of(THRESHOLD):
        conflicts.append(f"{CORRECTION}.rollout_is_threshold: {threshold} is not read without {CORRECTION}.rollout_is")
    option = settings.get("rollout_rs")
    limit = settings.get("rollout_rs_threshold")
    if option is None and limit is not None:
        conflicts.append(f"{CORRECTION}.rollout_rs_threshold: {limit} is not read without {CORRECTION}.rollout_rs")
    if option is not None:
        try:
            rejection_settings.parse(option, limit)
        except ValueError as error:
            conflicts.append(f"{CORRECTION}.rollout_rs: {error}")
    return conflicts
