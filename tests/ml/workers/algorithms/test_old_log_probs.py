"""Flow-GRPO where engine and trainer differ a little, and on a part of the recorded steps.

Recomputed log-probabilities, importance weights, `timestep_fraction`; the recomputed means of GRPO-Guard and Flow-DPPO.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ml.workers.tiny_actor import (
    ADVANTAGES,
    SAMPLER,
    log_probs,
    make_actor,
    model_settings,
    recorded_steps,
    relative_difference,
    smooth_steps,
    weights_of,
)
from verl_omni.algos import grpo
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.algorithms.flow_dppo import DPPOObjective, FlowDPPOLossConfig
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig, GRPOObjective
from verl_omni.workers.algorithms.grpo_guard import GRPOGuardLossConfig, GuardObjective
from verl_omni.workers.config import DiffusionLossConfig, DiffusionOptimizerConfig

pytestmark = pytest.mark.slow

ROWS = 4
STEPS = 2
OPTIM = DiffusionOptimizerConfig(lr=1e-2)  # of tests whose limits are crossed by its steps
OFF = torch.tensor([0.003, -0.2, 0.9, 0.01])  # the trainer's log-probabilities minus the engine's, of each row


def make(folder: Path, *, prompts: int = 2, **changes: Any) -> DiffusionActor:
    """An actor whose mini-batches have `prompts` prompts of two rows."""
    model = model_settings(folder, ["attn.to_q", "attn.to_v", "ff.net.2"])
    defaults = {
        "diffusion_loss": FlowGRPOLossConfig(clip_ratio=1e-3, adv_clip_max=100.0),
        "optim": smooth_steps(lr=0.1),
    }
    return make_actor(model, ppo_mini_batch_size=prompts, **defaults | changes)


def batch(actor: DiffusionActor, off: Tensor = OFF) -> dict[str, Tensor]:
    data = {**recorded_steps(ROWS, [0.9, 0.6, 0.3]), "advantages": ADVANTAGES}
    return {**data, "rollout_log_probs": log_probs(actor, data) - off[:, None]}


def same(one: DiffusionActor, other: DiffusionActor) -> bool:
    """Whether two actors took the same steps, the first of which has moved."""
    start = weights_of(make(Path(one.model_config.path)))
    return relative_difference(start, weights_of(one), weights_of(other)) < 1e-4


@pytest.mark.parametrize("changes", [{}, {"prompts": 1}, {"prompts": 1, "ppo_epochs": 2}], ids=str)
def test_recomputed_log_probs_do_not_depend_on_the_engine(model_folder: Path, changes: dict[str, int]) -> None:
    actors = [make(model_folder, **changes) for _ in range(2)]
    metrics = [actor.update(batch(actor, off), **SAMPLER) for actor, off in zip(actors, (OFF, 0 * OFF), strict=True)]
    assert same(*actors)
    assert metrics[0]["actor/clip_fraction_at_start"] == 0
    # The terms have the size 1 and cancel, so a smaller loss is rounding.
    assert metrics[0]["actor/loss"] == pytest.approx(metrics[1]["actor/loss"], abs=1e-6)
    rows = slice(2 if changes else ROWS)  # of the first optimizer step
    assert metrics[0]["rollout_corr/kl"] == pytest.approx(-OFF[rows].mean().item(), rel=1e-3)
    assert metrics[0]["rollout_corr/k3_kl"] == pytest.approx((OFF.exp() - 1 - OFF)[rows].mean().item(), rel=1e-3)


def test_in_bypass_mode_the_ratio_is_to_the_engine(model_folder: Path) -> None:
    actor = make(model_folder)
    metrics = actor.update(batch(actor), **SAMPLER, bypass_mode=True)
    assert metrics["actor/clip_fraction_at_start"] == 1, "every row differs by more than clip_ratio"
    assert metrics["actor/ratio_max"] == pytest.approx(OFF.max().exp().item(), rel=1e-4)
    assert not same(actor, make(model_folder)) and metrics["actor/optimizer_steps"] == 1


@pytest.mark.parametrize("bypass", [False, True])
def test_a_rejected_sample_teaches_nothing(model_folder: Path, bypass: bool) -> None:
    """In OFF, only 0.9 is not between the logarithms of 0.5 and 2."""
    rejecting, without = (make(model_folder) for _ in range(2))
    criterion = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.5_2.0"}
    metrics = rejecting.update(batch(rejecting), **SAMPLER, bypass_mode=bypass, **criterion)
    others = {"advantages": ADVANTAGES * torch.tensor([1, 1, 0, 1])}
    without.update(batch(without) | others, **SAMPLER, bypass_mode=bypass)
    assert same(rejecting, without) and not same(rejecting, make(model_folder))
    assert metrics["rollout_corr/rollout_rs_kept"] == 0.75


@pytest.mark.parametrize("request_", [{}, {"timestep_fraction": 0.5}], ids=str)
def test_old_log_probs_of_later_optimizer_steps_are_those_before_the_update(
    model_folder: Path, request_: dict[str, float]
) -> None:
    """With exact log-probabilities of the engine, both modes take the same steps, and the ratio moves away from 1."""
    actors = [make(model_folder, prompts=1, ppo_epochs=2) for _ in range(2)]
    metrics = [
        actor.update({**batch(actor, 0 * OFF), "draw_seeds": SEEDS}, **SAMPLER, **request_, bypass_mode=bypass)
        for actor, bypass in zip(actors, (False, True), strict=True)
    ]
    assert same(*actors)
    assert metrics[0]["actor/ratio_max"] == pytest.approx(metrics[1]["actor/ratio_max"], rel=1e-5) and (
        metrics[0]["actor/clip_fraction"] > 0
    )


@pytest.mark.parametrize(
    ("changes", "request_", "extra"),
    [
        ({}, {}, 0),
        ({"prompts": 1}, {}, 2),  # the rows of the second mini-batch
        ({"prompts": 1, "ppo_epochs": 2}, {}, ROWS),
        ({"prompts": 1}, {"bypass_mode": True}, 0),
        ({}, {"rollout_is": "token"}, 0),
        ({}, {"rollout_is": "sequence"}, ROWS),
        ({}, {"bypass_mode": True, "rollout_rs": "token_k2", "rollout_rs_threshold": 1}, ROWS),
    ],
    ids=str,
)
def test_only_what_is_needed_is_recomputed(
    model_folder: Path, changes: dict[str, int], request_: dict[str, Any], extra: int
) -> None:
    actor = make(model_folder, ppo_micro_batch_size_per_gpu=1, **changes)
    data = batch(actor)
    passes = []
    actor.module.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    actor.update(data, **SAMPLER, **request_)
    assert passes.count(False) == extra * STEPS
    assert passes.count(True) == ROWS * STEPS * changes.get("ppo_epochs", 1)


@pytest.mark.parametrize("objective", [GRPOObjective, GuardObjective])
def test_a_row_without_advantage_is_not_clipped(objective: Any) -> None:
    """Several ranks compute such rows, and one process does not: the share of clipped ratios is the same."""
    clipped = objective(None, FlowGRPOLossConfig(), kl_loss_coef=None, noise_level=0.7, sde_type="sde")
    part = {
        "advantages": torch.tensor([1.0, 0.0, -1.0]),
        "all_timesteps": torch.zeros(3, 1),
        "all_sigmas": torch.tensor([[0.9, 0.6]] * 3),
    }
    far = torch.full((3,), 0.1)
    mean = torch.zeros(3, 1)
    _, measured = clipped.policy_loss(part, 0, far, mean, torch.ones(3, 1))
    assert measured["clip_fraction"].tolist() == [1, 0, 1]


def test_the_kl_to_the_old_policy_of_a_row_without_advantage_does_not_count() -> None:
    divergence = DPPOObjective(None, FlowDPPOLossConfig(), kl_loss_coef=None, noise_level=0.7, sde_type="sde")  # type: ignore[arg-type]
    divergence.at_start = False
    part = {"advantages": torch.tensor([1.0, 0.0, -1.0]), "old_means": torch.ones(3, 1, 1)}
    _, measured = divergence.policy_loss(part, 0, torch.zeros(3), torch.zeros(3, 1), torch.ones(3, 1))
    assert measured["kl_to_old"].tolist() == [0.5, 0, 0.5]


def test_rows_without_gradient_are_not_recomputed(model_folder: Path) -> None:
    actor = make(model_folder, prompts=1, ppo_micro_batch_size_per_gpu=1)
    data = batch(actor)
    passes = []
    data["advantages"] = torch.tensor([1.0, 0.0, -1.0, 0.0])
    actor.module.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    metrics = actor.update(data, **SAMPLER)
    assert passes.count(False) == STEPS and metrics["actor/skipped_steps"] == 0
    assert passes.count(True) == 2 * STEPS, "of the first row of each mini-batch"


@pytest.mark.parametrize("prompts", [2, 1])
@pytest.mark.parametrize(("level", "steps"), [("token", 1), ("sequence", STEPS)])
def test_weights_multiply_the_loss_of_their_rows(model_folder: Path, level: str, steps: int, prompts: int) -> None:
    weighted, scaled = (make(model_folder, prompts=prompts) for _ in range(2))
    weights = (steps * OFF.double()).exp().clamp(max=1.5)
    metrics = weighted.update(batch(weighted), **SAMPLER, rollout_is=level, rollout_is_threshold=1.5)
    data = batch(scaled)
    data["advantages"] = (weights * ADVANTAGES).float()
    want = scaled.update(data, **SAMPLER)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(weights.mean().item(), rel=1e-4)
    assert "rollout_corr/rollout_is_mean" not in want
    assert metrics["actor/grad_norm"] == pytest.approx(want["actor/grad_norm"], rel=1e-3)
    assert same(weighted, scaled)
    assert weights[2] == 1.5, "one of them is truncated"


HALF: dict[str, Any] = {**SAMPLER, "timestep_fraction": 0.5}
SEEDS = torch.tensor([0, 1, 2, 3])


def test_a_fraction_trains_each_row_on_its_own_steps(model_folder: Path) -> None:
    """The update of a batch that has nothing but the chosen step of each row."""
    actor, reference = (make(model_folder, use_kl_loss=True) for _ in range(2))
    data = batch(actor)
    chosen = grpo.choose_steps(SEEDS, STEPS, 0.5)
    assert set(chosen.flatten().tolist()) == {0, 1}, "the rows differ in their steps"
    rows = torch.arange(ROWS)[:, None]
    pair = torch.cat([chosen, chosen + 1], dim=1)
    alone = {
        **data,
        "all_latents": data["all_latents"][rows, pair],
        "all_sigmas": data["all_sigmas"][rows, pair],
        "all_timesteps": data["all_timesteps"][rows, chosen],
        "rollout_log_probs": data["rollout_log_probs"][rows, chosen],
    }
    weights: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": 1.5}
    metrics = actor.update({**data, "draw_seeds": SEEDS}, **HALF, **weights)
    want = reference.update(alone, **SAMPLER, **weights)
    assert metrics == pytest.approx(want, rel=1e-4, abs=1e-6) and same(actor, reference)


@pytest.mark.parametrize("more", [{}, {"timestep_fraction": 0.5}], ids=str)
@pytest.mark.parametrize("loss", [FlowGRPOLossConfig(clip_ratio=1e-3), GRPOGuardLossConfig(clip_ratio=1e-5)], ids=str)
def test_steps_recorded_one_by_one_train_as_those_of_a_window(
    model_folder: Path, loss: DiffusionLossConfig, more: dict[str, float]
) -> None:
    """The latent between two steps of a window is the end of one and the beginning of the next."""
    actors = [make(model_folder, prompts=1, ppo_epochs=2, diffusion_loss=loss) for _ in range(2)]
    data = {**batch(actors[0]), "draw_seeds": SEEDS}
    pairs = [place for step in range(STEPS) for place in (step, step + 1)]
    single = {**data, "all_latents": data["all_latents"][:, pairs], "all_sigmas": data["all_sigmas"][:, pairs]}
    metrics, want = (actor.update(rows, **SAMPLER, **more) for actor, rows in zip(actors, (single, data), strict=True))
    assert metrics == pytest.approx(want, rel=1e-5, abs=1e-6) and same(*actors)


@pytest.mark.parametrize("request_", [{}, {"rollout_is": "sequence"}], ids=str)
def test_a_fraction_does_not_depend_on_the_split_of_a_batch(model_folder: Path, request_: dict[str, str]) -> None:
    unsplit = make(model_folder)
    split = make(model_folder, ppo_micro_batch_size_per_gpu=1)
    passes: list[bool] = []
    data = {**batch(unsplit), "draw_seeds": SEEDS}
    split.module.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    metrics = [actor.update(data, **HALF, **request_) for actor in (unsplit, split)]
    assert metrics[0]["actor/grad_norm"] == pytest.approx(metrics[1]["actor/grad_norm"], rel=1e-4)
    assert same(unsplit, split)
    assert passes.count(True) == ROWS * STEPS // 2
    assert passes.count(False) == (ROWS * STEPS // 2 if request_ else 0)


GUARD = GRPOGuardLossConfig(clip_ratio=1e-5, adv_clip_max=0.6)
SIZE = 0.3  # of all steps of the batch


def moved_means(
    objective: GuardObjective | DPPOObjective, data: dict[str, Tensor], old: list[tuple[Tensor, ...]]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """How much nearer the latent of a step is to its mean now, how far the mean has moved (both squared), and the
    standard deviation, step by step; in float64 after the model's own velocities.

    Args:
        old: mean, standard deviation and log-probability of each step before the update.
    """
    for step in range(STEPS):
        with torch.no_grad():
            mean, std, _ = (part.double() for part in objective.density(data, step))
        old_mean = old[step][0].double()
        x = data["all_latents"][:, step + 1].double()
        nearer = ((x - old_mean) ** 2).flatten(1).mean(1) - ((x - mean) ** 2).flatten(1).mean(1)
        yield nearer, ((mean - old_mean) ** 2).flatten(1).mean(1), std.flatten()


def guard_loss(objective: GuardObjective, data: dict[str, Tensor], old: list[tuple[Tensor, ...]]) -> tuple[float, ...]:
    """Loss and clip fraction under the current policy."""
    losses = []
    clips = []
    for nearer, moved, std in moved_means(objective, data, old):
        ratio = (std * (nearer + moved) / (2 * std**2)).exp()
        advantage = ADVANTAGES.double().clamp(-0.6, 0.6)
        clipped = ratio.clamp(1 - GUARD.clip_ratio, 1 + GUARD.clip_ratio)
        losses.append(torch.maximum(-advantage * ratio, -advantage * clipped) / SIZE)
        clips.append((ratio - 1).abs() > GUARD.clip_ratio)
    return torch.stack(losses).mean().item(), torch.stack(clips).double().mean().item()


def test_grpo_guard_against_float64(model_folder: Path) -> None:
    """Two optimizer steps: the second one compares with the means before the first."""
    actor = make(model_folder, diffusion_loss=GUARD, optim=OPTIM)
    data = batch(actor)
    objective = GuardObjective(actor.policy, GUARD, kl_loss_coef=None, **SAMPLER)
    with torch.no_grad():
        old = [objective.density(data, step) for step in range(STEPS)]
    first, no_clip = guard_loss(objective, data, old)
    metrics = actor.update(data, **SAMPLER)
    assert metrics["actor/loss"] == pytest.approx(first, rel=1e-5)
    assert metrics["actor/clip_fraction_at_start"] == no_clip == 0 and metrics["actor/ratio_max"] == 1
    second, clip = guard_loss(objective, data, old)
    both = make(model_folder, diffusion_loss=GUARD, ppo_epochs=2, optim=OPTIM).update(data, **SAMPLER)
    assert 2 * both["actor/loss"] - first == pytest.approx(second, rel=1e-5) and second != pytest.approx(first)
    assert 2 * both["actor/clip_fraction"] == clip > 0


def dppo_loss(objective: DPPOObjective, data: dict[str, Tensor], old: list[tuple[Tensor, ...]]) -> tuple[float, ...]:
    """Loss, excluded fraction, mean and largest KL under the current policy."""
    losses = []
    masks = []
    drifts = []
    for nearer, moved, std in moved_means(objective, data, old):
        scale = 1 if objective.sde_type == "cps" else 2 * std**2  # `cps` omits the variance
        ratio = (nearer / scale).exp()
        drift = moved / (2 * std**2)
        advantage = ADVANTAGES.double().clamp(-0.6, 0.6)
        outward = ((advantage > 0) & (ratio > 1)) | ((advantage < 0) & (ratio < 1))
        masks.append(outward & (drift > objective.config.kl_mask_threshold))
        losses.append(torch.where(masks[-1], 0, -advantage * ratio))
        drifts.append(drift)
    drift = torch.stack(drifts)
    excluded = torch.stack(masks).double().mean().item()
    return torch.stack(losses).mean().item(), excluded, drift.mean().item(), drift.max().item()


@pytest.mark.parametrize(("kind", "threshold"), [("sde", 6e-6), ("cps", 5e-5)])
def test_flow_dppo_against_float64(model_folder: Path, kind: str, threshold: float) -> None:
    """Two optimizer steps: the second one compares with the means before the first."""
    loss = FlowDPPOLossConfig(kl_mask_threshold=threshold, adv_clip_max=0.6)
    sampler = {**SAMPLER, "sde_type": kind}
    actor = make(model_folder, diffusion_loss=loss, optim=OPTIM)
    data = batch(actor)
    objective = DPPOObjective(actor.policy, loss, kl_loss_coef=None, **sampler)
    with torch.no_grad():
        old = [objective.density(data, step) for step in range(STEPS)]
    first, *nothing = dppo_loss(objective, data, old)
    metrics = actor.update(data, **sampler)
    assert metrics["actor/loss"] == pytest.approx(first, rel=1e-5)
    assert nothing == [0, 0, 0] and metrics["actor/clip_fraction_at_start"] == metrics["actor/kl_to_old_max"] == 0
    second, excluded, mean, largest = dppo_loss(objective, data, old)
    both = make(model_folder, diffusion_loss=loss, ppo_epochs=2, optim=OPTIM).update(data, **sampler)
    assert 2 * both["actor/loss"] - first == pytest.approx(second, rel=1e-4)
    assert 2 * both["actor/clip_fraction"] == excluded and 0 < excluded < 1
    assert 2 * both["actor/kl_to_old"] == pytest.approx(mean, rel=1e-4) and mean > 0
    assert both["actor/kl_to_old_max"] == pytest.approx(largest, rel=1e-4)


@pytest.mark.parametrize("loss", [GUARD, FlowDPPOLossConfig()], ids=["grpo_guard", "flow_dppo"])
def test_a_loss_of_means_needs_those_of_the_trainer(model_folder: Path, loss: Any) -> None:
    """One optimizer step costs nothing more; in later ones the engine's log-probabilities do not matter either."""
    actors = [make(model_folder, prompts=1, diffusion_loss=loss) for _ in range(2)]
    for actor, off in zip(actors, (OFF, 0 * OFF), strict=True):
        actor.update(batch(actor, off), **SAMPLER)
    assert same(*actors)
    single = make(model_folder, diffusion_loss=loss)
    passes = []
    data = batch(single)
    single.module.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    single.update(data, **SAMPLER)
    assert passes == [True] * STEPS
