"""Flow-GRPO (arXiv:2505.05470). DanceGRPO and MixGRPO use the same loss and differ in the sampler."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import torch
from omegaconf import DictConfig
from torch import Tensor
from typing_extensions import override

from verl_omni.algos import agreement, grpo, rejection_settings, rollout_correction, sde
from verl_omni.pipelines.registry import training_adapter
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.algorithms.base import (
    Objective,
    PolicyLoss,
    Samples,
    TrainingAlgorithm,
    draw_seeds,
    estimate_advantages,
)
from verl_omni.workers.config import DiffusionActorConfig, DiffusionLossConfig
from verl_omni.workers.config.diffusion.dtypes import parse_dtype
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE


@dataclass
class StepLossConfig(DiffusionLossConfig):
    """Settings of all algorithms that train on recorded steps, explained in `trainer/config/loss/flow_grpo.yaml`."""

    adv_clip_max: float = FROM_FILE
    exact_kl: bool = FROM_FILE


@dataclass
class GRPOLossConfig(StepLossConfig):
    """Settings of Flow-GRPO and GRPO-Guard."""

    clip_ratio: float = FROM_FILE


@dataclass
class FlowGRPOLossConfig(GRPOLossConfig):
    """Settings of Flow-GRPO."""

    loss_mode: Literal["flow_grpo"] = "flow_grpo"


Settings = TypeVar("Settings", bound=StepLossConfig)


COMPARED = "compared_log_probs"  # float32 [B]: old log-probabilities in a term's log-ratio


class StepObjective(ABC, Generic[Settings]):
    """A policy loss over the recorded SDE steps.

    Batch: `all_latents` [B, T + 1, ...], `all_timesteps` [B, T], `all_sigmas` [B, T + 1] (latents and sigmas of steps
    that are not contiguous [B, 2 T, ...], before and after each step), `sigma_max` [B, 1], `rollout_log_probs` [B, T],
    `velocity_projections` [B, T, K + 1] if they are checked, `advantages` [B], the embeddings, and with a
    `timestep_fraction` below 1 `draw_seeds` int64 [B].

    Args:
        kl_loss_coef: weight of the KL to the base model; None: no KL.
        noise_level, sde_type, guidance_scale: settings of the sampler that generated the batch.
        tolerance: upper limit of the mean absolute difference between the engine's and the trainer's log-probabilities
            before the first optimizer step, where both have the same weights.
        velocity_tolerance: upper limit of the mean relative difference between their velocities there; the limit for
            their sizes is `agreement.SIZE_SHARE` of it. None: no check.
        limit_by_depth: raise the limit (but not the limit for sizes) to the difference that rounding to bfloat16 may
            cause in a model of this depth with this guidance.
        same_weights: whether the engine had the weights of the trainer before the first optimizer step.
        rounding: differences of velocities that come from rounding, which updates with the same weights measure; None:
            none are known.
        bypass_mode: use the engine's log-probabilities as the old ones, not the trainer's before the update.
            What rounding changes on average is subtracted from the log-ratio: see `_rounding_effect`.
        rollout_is: level of the importance weights between trainer and engine; None: none.
        rollout_is_threshold: upper limit of the weights.
        rollout_rs, rollout_rs_threshold: as `algos.rejection_settings.parse` takes them; None: no step is rejected. A
            rejected step has no loss, and counts among the terms.
        timestep_fraction: share of the recorded steps that each sample is trained on, in (0, 1].
        actor: settings of the actor, for losses in the reference's form.

    Attributes:
        compares_means: the loss also needs the means before the update, which the engine does not record.
    """

    samples_per_row = 1
    compares_means = False

    def __init__(
        self,
        policy: Policy,
        config: Settings,
        *,
        kl_loss_coef: float | None,
        noise_level: float,
        sde_type: str,
        guidance_scale: float = 1.0,
        tolerance: float = float("inf"),
        velocity_tolerance: float | None = None,
        limit_by_depth: bool = False,
        same_weights: bool = True,
        rounding: agreement.RoundingErrors | None = None,
        bypass_mode: bool = False,
        rollout_is: str | None = None,
        rollout_is_threshold: float = 2.0,
        rollout_rs: str | None = None,
        rollout_rs_threshold: object = None,
        timestep_fraction: float = 1.0,
        actor: DiffusionActorConfig | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.kl_loss_coef = kl_loss_coef
        self.noise_level = noise_level
        self.sde_type = sde_type
        self.guidance_scale = guidance_scale
        self.tolerance = tolerance
        self.velocity_tolerance = velocity_tolerance
        self.bypass_mode = bypass_mode
        self.size_tolerance = None if velocity_tolerance is None else agreement.SIZE_SHARE * velocity_tolerance
        if velocity_tolerance is not None and limit_by_depth:
            limit = agreement.rounding_limit(policy.layers, guidance_scale)
            self.velocity_tolerance = max(velocity_tolerance, limit)
        self.same_weights = same_weights
        self.rounding = agreement.RoundingErrors() if rounding is None else rounding
        self.rollout_is = rollout_is
        self.rollout_is_threshold = rollout_is_threshold
        self.criterion = None if rollout_rs is None else rejection_settings.parse(rollout_rs, rollout_rs_threshold)
        self.timestep_fraction = timestep_fraction
        self.actor = actor
        self.at_start = True  # no optimizer step of the update has been taken

    @property
    def recomputed(self) -> Literal["none", "later", "all"]:
        if self.criterion is not None:
            return "all"
        if self.bypass_mode:
            return "none"
        return "all" if self.rollout_is == "sequence" else "later"  # weights of samples need all their steps first

    def start_values(self, part: Batch, place: int) -> dict[str, Tensor]:
        mean, _, log_prob = self.density(part, place)
        return {"old_log_probs": log_prob, **({"old_means": mean} if self.compares_means else {})}

    def prepare(self, batch: Batch) -> Batch:
        if self.timestep_fraction == 1:
            return batch
        engine = batch["rollout_log_probs"]
        chosen = grpo.choose_steps(batch["draw_seeds"], engine.shape[1], self.timestep_fraction).to(engine.device)
        return {**batch, "chosen_steps": chosen, "rollout_log_probs": engine.gather(1, chosen)}

    def term_count(self, batch: Batch) -> int:
        return batch["rollout_log_probs"].shape[1]

    def rows_with_gradient(self, batch: Batch) -> Tensor:
        # Without KL, a row with advantage 0 has no gradient.
        return (batch["advantages"] != 0) | (self.kl_loss_coef is not None)

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        velocity = self._velocity(part, place)
        mean, std, log_prob = self._density(part, place, velocity)
        engine = part["rollout_log_probs"][:, place]
        compared = self._compare_velocities(part, place, velocity.detach())
        # Nothing has changed the weights before the first optimizer step, so the ratio is exactly 1 there.
        start = log_prob.detach() if self.at_start else None if self.bypass_mode else part["old_log_probs"][:, place]
        bypassed = start is None or self.bypass_mode
        old = engine + self._rounding_effect(part, place, compared) if bypassed else start
        loss, measured = self.policy_loss({**part, COMPARED: old}, place, log_prob - old, mean, std)
        measured |= compared
        if self.criterion is not None:
            every = rollout_correction.kept(part["old_log_probs"], part["rollout_log_probs"], self.criterion)
            kept = every[:, place].to(loss.dtype)
            loss = kept * loss
            measured["kept"] = kept
        if start is not None:
            measured["engine_difference"] = start - engine
            if self.rollout_is is not None:
                measured["weight"] = weight = self._weight(part, start[:, None], engine[:, None])
                loss = weight * loss
        if self.kl_loss_coef is not None:
            with self.policy.as_base():
                base_mean, _, _ = self.density(part, place)
            divergence = grpo.gaussian_kl(mean, base_mean, self._kl_deviation(part, place, std))
            loss = loss + self.kl_loss_coef * divergence
            measured["kl"] = divergence.detach()
        return loss, measured

    @abstractmethod
    def policy_loss(
        self, part: Batch, place: int, log_ratio: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of each row, [B]; and measurements without gradient, [B] each.

        The measurements are `difference`, the log-ratio that the loss limits, `clip_fraction`, 1 where it is limited,
        and, if the loss needs it, `kl_to_old`, the KL to the policy before the update.

        Args:
            log_ratio: log-probability of the step minus the old one, [B].
            mean, std: mean and std of the next latent under the current policy, as returned by `density`.
        """

    def _compare_velocities(self, part: Batch, place: int, velocity: Tensor) -> dict[str, Tensor]:
        """Measurements of the difference between the velocities of trainer and engine, [B] each; {} if not checked."""
        if not self.at_start or self.velocity_tolerance is None:
            return {}
        pair = agreement.velocity_projections(velocity), recorded(part, "velocity_projections", place)
        return {
            "velocity_difference": agreement.velocity_difference(*pair),
            "size_difference": agreement.size_difference(*pair),
            "squared_difference": agreement.squared_difference(*pair),
            "timestep": recorded(part, "all_timesteps", place),
        }

    def _rounding_effect(self, part: Batch, place: int, compared: Mapping[str, Tensor]) -> Tensor:
        """Expected log-ratio of trainer to engine if both have the same weights, [B], at most 0.

        They round differently, and a velocity error can only lower the likelihood of the latent that the engine drew.
        Without a correction, the clip range would exclude rows with a negative advantage before anything was learned,
        and none with a positive one.
        """
        if self.velocity_tolerance is None:
            return torch.zeros_like(part["rollout_log_probs"][:, place])
        if self.at_start and self.same_weights:
            share = compared["squared_difference"]
        else:
            share = self.rounding.at(recorded(part, "all_timesteps", place))
        size = recorded(part, "velocity_projections", place)[:, -1]
        elements = recorded(part, "all_latents", place)[0].numel()
        sigma, sigma_next = (recorded(part, "all_sigmas", place, later) for later in (0, 1))
        return sde.velocity_error_effect(
            self.sde_type,
            share * size**2 / elements,
            sigma=sigma,
            sigma_next=sigma_next,
            sigma_max=part["sigma_max"].flatten(),
            noise_level=self.noise_level,
        )

    def old_mean(self, part: Batch, place: int, mean: Tensor) -> Tensor:
        """Mean of the next latent before the update, [B, ...], if the loss compares means; now it is `mean`."""
        return mean.detach() if self.at_start else part["old_means"][:, place]

    def _kl_deviation(self, part: Batch, place: int, std: Tensor) -> Tensor:
        if self.config.exact_kl or self.sde_type != "sde":
            return std
        sigma, sigma_next = (recorded(part, "all_sigmas", place, later) for later in (0, 1))
        return sde.diffusion(std, sigma=sigma, sigma_next=sigma_next)

    def density(self, part: Batch, place: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, standard deviation and log-probability [B] of term `place` under the current policy."""
        return self._density(part, place, self._velocity(part, place))

    def _velocity(self, part: Batch, place: int) -> Tensor:
        """Velocity of term `place` under the current policy, [B, ...]."""
        x = recorded(part, "all_latents", place).float()
        return self.policy.velocity(part, x, recorded(part, "all_timesteps", place), self.guidance_scale)

    def _density(self, part: Batch, place: int, velocity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Recorded latents have the model's dtype, and densities need float32.
        x, x_next = (recorded(part, "all_latents", place, later).float() for later in (0, 1))
        sigma, sigma_next = (recorded(part, "all_sigmas", place, later) for later in (0, 1))
        mean, std = sde.moments(
            self.sde_type,
            x,
            velocity,
            sigma=sigma,
            sigma_next=sigma_next,
            sigma_max=part["sigma_max"].flatten(),
            noise_level=self.noise_level,
        )
        return mean, std, sde.log_prob(self.sde_type, x_next, mean, std)

    def _weight(self, part: Batch, start: Tensor, engine: Tensor) -> Tensor:
        """Importance weight of each row, [B]; log-probabilities [B, 1] of the term, trainer's and engine's."""
        if self.rollout_is == "sequence":
            start = part["old_log_probs"]
            engine = part["rollout_log_probs"]
        return rollout_correction.weights(start, engine, threshold=self.rollout_is_threshold)

    def summarize(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        clip_fraction = measured["clip_fraction"].sum().item() / count
        metrics = {"actor/clip_fraction": clip_fraction, "actor/ratio_max": measured["difference"].exp().max().item()}
        if "kl" in measured:
            metrics["actor/kl"] = measured["kl"].sum().item() / count
        if "kl_to_old" in measured:
            metrics["actor/kl_to_old"] = measured["kl_to_old"].sum().item() / count
            metrics["actor/kl_to_old_max"] = measured["kl_to_old"].max().item()
        if "kept" in measured:
            metrics["rollout_corr/rollout_rs_kept"] = measured["kept"].mean().item()
        if "weight" in measured:
            metrics["rollout_corr/rollout_is_mean"] = measured["weight"].mean().item()
        if self.at_start:
            self.at_start = False
            metrics["actor/clip_fraction_at_start"] = clip_fraction
            metrics |= _excluded_shares(measured)
            if self.velocity_tolerance is not None:  # first, because it explains a difference of log-probabilities
                differences = measured["velocity_difference"], measured["size_difference"]
                metrics |= agreement.check_velocities(*differences, self.velocity_tolerance, self.size_tolerance)
                if self.same_weights:
                    self.rounding.measure(measured["timestep"], measured["squared_difference"])
            metrics |= agreement.check_log_probs(measured["engine_difference"], self.tolerance)
        return metrics

    def finish(self) -> None:
        pass


class GRPOObjective(StepObjective[GRPOLossConfig]):
    """The clipped policy loss (arXiv:2505.05470, eq. 6)."""

    @override
    def policy_loss(
        self, part: Batch, place: int, log_ratio: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        clip = self.config.clip_ratio
        limit = self.config.adv_clip_max
        loss = grpo.clipped(log_ratio, part["advantages"], clip_ratio=clip, adv_clip_max=limit)
        difference = log_ratio.detach()
        advantages = part["advantages"]
        beyond = difference.exp() - 1
        # Without an advantage there is nothing to clip, and one process may not even compute the row.
        clipped = ((beyond.abs() > clip) & (advantages != 0)).float()
        excluded = (beyond * advantages.sign() > clip).float()
        measured = {"difference": difference, "clip_fraction": clipped, "excluded": excluded, "advantage": advantages}
        return loss, measured


def _excluded_shares(measured: Mapping[str, Tensor]) -> dict[str, float]:
    """Shares of the terms with a positive and with a negative advantage that the clip range leaves without gradient."""
    if "excluded" not in measured:
        return {}
    signs = {"positive": measured["advantage"] > 0, "negative": measured["advantage"] < 0}
    return {
        f"actor/excluded_at_start_{name}": measured["excluded"][rows].mean().item()
        for name, rows in signs.items()
        if rows.any()
    }


def velocity_limits(config: DictConfig) -> dict[str, Any]:
    """`velocity_tolerance` and `limit_by_depth` of the objective: the setting, or the limit of the coarsest dtype.

    Those are the dtypes of the engine, of the computation, and of the frozen weights of LoRA.
    """
    limit = config.trainer.max_velocity_difference
    if limit is not None:
        return {"velocity_tolerance": float(limit)}
    settings = config.actor_rollout_ref
    fsdp = settings.actor.fsdp_config
    frozen = (fsdp.model_dtype,) if settings.model.lora_rank > 0 and fsdp.model_dtype is not None else ()
    names = (settings.rollout.dtype, fsdp.mixed_precision.param_dtype, *frozen)
    dtypes = {parse_dtype("dtype", name) for name in names}
    tolerance = max(agreement.VELOCITY_TOLERANCES[dtype] for dtype in dtypes)
    return {"velocity_tolerance": tolerance, "limit_by_depth": torch.bfloat16 in dtypes}


def recorded(part: Batch, name: str, place: int, later: int = 0) -> Tensor:
    """What is recorded at the beginning of the step of term `place`, or with `later=1` at its end, [B, ...]."""
    values = part[name]
    stride = 2 if values.shape[1] > part["all_timesteps"].shape[1] + 1 else 1  # 2: steps share no latent
    if "chosen_steps" not in part:
        return values[:, stride * place + later]
    steps = stride * part["chosen_steps"][:, place] + later
    return values[torch.arange(len(steps), device=steps.device), steps]


class StepAlgorithm(TrainingAlgorithm[Settings]):
    """Raises the likelihood of recorded steps with positive advantages, within what `objective_type` allows."""

    objective_type: type[StepObjective[Settings]]

    def __init__(self) -> None:
        self.make_objective: Callable[..., Objective] = self.objective_type
        self.rounding = agreement.RoundingErrors()

    @override
    def training_batch(self, samples: Samples, loss: Settings, config: DictConfig, seed: int) -> Batch:
        advantages = estimate_advantages(samples, config)
        seeds = {} if config.algorithm.timestep_fraction == 1 else {"draw_seeds": draw_seeds(len(advantages), seed)}
        return {**samples.tensors, "advantages": advantages, **seeds}

    @override
    def update_arguments(self, config: DictConfig, step: int) -> dict[str, Any]:
        rollout = config.actor_rollout_ref.rollout
        family = training_adapter(config.actor_rollout_ref.model.architecture)
        correction = config.algorithm.rollout_correction
        return {
            "noise_level": rollout.algo.noise_level,
            "sde_type": rollout.algo.sde_type,
            "guidance_scale": family.guidance(rollout.pipeline),
            "tolerance": config.trainer.max_log_prob_difference,
            **velocity_limits(config),
            "timestep_fraction": config.algorithm.timestep_fraction,
            "bypass_mode": correction.bypass_mode,
            # In bypass mode the loss has the ratio to the engine's policy already.
            "rollout_is": None if correction.bypass_mode else correction.rollout_is,
            "rollout_is_threshold": correction.rollout_is_threshold,
            "rollout_rs": correction.rollout_rs,
            "rollout_rs_threshold": correction.rollout_rs_threshold,
        }

    @override
    def for_older_samples(self, arguments: dict[str, Any]) -> dict[str, Any]:
        # Between different weights, differences say nothing about the engine.
        return {**arguments, "same_weights": False, "tolerance": float("inf"), "velocity_tolerance": float("inf")}

    @override
    def objective(
        self, policy: Policy, loss: Settings, actor: DiffusionActorConfig, arguments: Mapping[str, Any]
    ) -> Objective:
        coefficient = actor.kl_loss_coef if actor.use_kl_loss else None
        known = {"actor": actor, "rounding": self.rounding, **arguments}
        return self.make_objective(policy, loss, kl_loss_coef=coefficient, **known)

    @override
    def with_loss(self, loss: PolicyLoss) -> TrainingAlgorithm[Settings]:
        copied = copy(self)
        copied.make_objective = getattr(loss, "make_objective", None) or partial(UserObjective, loss)
        return copied


class UserObjective(StepObjective[StepLossConfig]):
    """A policy loss of the user (`verl_omni.extensions.register_loss`)."""

    def __init__(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss = loss

    @override
    def rows_with_gradient(self, batch: Batch) -> Tensor:
        return torch.ones_like(batch["advantages"], dtype=torch.bool)  # what it makes of advantage 0 is not known

    @override
    def policy_loss(
        self, part: Batch, place: int, log_ratio: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.loss(log_ratio, part["advantages"], self.config)
        if not isinstance(loss, Tensor):
            raise TypeError(f"a policy loss must be a tensor, and is a {type(loss).__name__}: {self.loss}")
        if log_ratio.requires_grad and not loss.requires_grad:
            raise ValueError(f"a policy loss must have a gradient, and does not depend on log_ratio: {self.loss}")
        if loss.shape != log_ratio.shape:
            raise ValueError(f"a policy loss must be {list(log_ratio.shape)}, and is {list(loss.shape)}: {self.loss}")
        difference = log_ratio.detach()
        return loss, {"difference": difference, "clip_fraction": torch.zeros_like(difference)}


class FlowGRPO(StepAlgorithm[GRPOLossConfig]):
    """Flow-GRPO: limits the likelihood ratio to the clip range."""

    settings: type[GRPOLossConfig] = FlowGRPOLossConfig
    objective_type: type[StepObjective[GRPOLossConfig]] = GRPOObjective
