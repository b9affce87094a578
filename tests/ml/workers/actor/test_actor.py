"""The trained model on one process: gradients, checkpoints, LoRA files (test_ranks.py: on several)."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from verl.utils.torch_functional import get_cosine_schedule_with_warmup

from ml.workers.tiny_actor import (
    ADVANTAGES,
    SAMPLER,
    TARGETS,
    log_probs,
    make_actor,
    model_settings,
    recorded_steps,
    weights_of,
)
from verl_omni.algos.agreement import VELOCITY_TOLERANCES, VelocityMismatch, velocity_projections
from verl_omni.workers.actor import build
from verl_omni.workers.actor.actor import DiffusionActor, learning_rate_factor
from verl_omni.workers.actor.lora_linear import OrderedLinear
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig
from verl_omni.workers.config import DiffusionFSDPConfig, DiffusionMixedPrecisionConfig, DiffusionOptimizerConfig

pytestmark = pytest.mark.slow

BFLOAT16 = DiffusionFSDPConfig(mixed_precision=DiffusionMixedPrecisionConfig(param_dtype="bfloat16"))


def make(folder: Path, *, rank: int = 4, **changes: Any) -> DiffusionActor:
    return make_actor(model_settings(folder, TARGETS, rank=rank), **changes)


def batch(actor: DiffusionActor | None = None, steps: int = 2, side: int = 8) -> dict[str, torch.Tensor]:
    data = {**recorded_steps(4, [0.9, 0.6, 0.3][: steps + 1], side), "advantages": ADVANTAGES}
    return {**data, "rollout_log_probs": torch.zeros(4, steps) if actor is None else log_probs(actor, data)}


def test_an_update_raises_the_likelihood_of_good_samples(model_folder: Path) -> None:
    actor = make(model_folder)
    data = batch(actor)
    metrics = actor.update(data, **SAMPLER, tolerance=1e-6)
    assert metrics["rollout_corr/mean_abs_diff"] == 0 and metrics["actor/ratio_max"] == 1
    assert "actor/kl" not in metrics, "none is computed"
    assert any(isinstance(module, OrderedLinear) for module in actor.module.modules())
    gained = (log_probs(actor, data) - data["rollout_log_probs"]).mean(1)
    assert (gained * data["advantages"]).sum() > 0
    again = actor.update(data, **SAMPLER, bypass_mode=True)
    assert again["actor/clip_fraction"] > 0, "with the same samples once more, the ratio has left 1"


@pytest.mark.parametrize("wrong", [0.0, 0.01, 0.05])
def test_an_engine_whose_velocity_is_wrong_by_1_percent_updates_nothing(model_folder: Path, wrong: float) -> None:
    """Also if the log-probabilities pass: they are means over the elements, so an error hardly changes them."""
    actor = make(model_folder)
    data = batch(actor)
    before = weights_of(actor)
    with torch.no_grad():
        projections = [
            velocity_projections(
                (1 + wrong)
                * actor.policy.velocity(data, data["all_latents"][:, step], data["all_timesteps"][:, step], 1)
            )
            for step in range(2)
        ]
    data["velocity_projections"] = torch.stack(projections, 1)
    if wrong == 0.05:  # as a velocity does that is wrong enough; it is what the message names
        data["rollout_log_probs"] = data["rollout_log_probs"] + 0.5
    request = {**SAMPLER, "tolerance": 1e-3, "velocity_tolerance": 1e-3}
    if wrong:
        with pytest.raises(VelocityMismatch):
            actor.update(data, **request)
        assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(actor).items())
    else:
        measured = actor.update(data, **request)
        assert measured["rollout_corr/velocity_rel_diff"] < 1e-5 and measured["actor/optimizer_steps"] == 1


@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("wrong", [0.0, 0.01, -0.01, 0.05])
def test_in_bfloat16_an_engine_that_is_wrong_by_1_percent_differs_from_one_that_rounds(
    model_folder: Path, wrong: float, side: int
) -> None:
    """The engine computes row by row, in bfloat16, with another attention kernel; and with the default limit."""
    actor = make(model_folder, fsdp_config=BFLOAT16)
    data = batch(actor, side=side)
    engine = make(model_folder, fsdp_config=BFLOAT16)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        rows = [
            velocity_projections(
                (1 + wrong)
                * engine.policy.velocity(
                    {name: tensor[row : row + 1] for name, tensor in data.items()},
                    data["all_latents"][row : row + 1, step],
                    data["all_timesteps"][row : row + 1, step],
                    1,
                )
            )
            for row in range(4)
            for step in range(2)
        ]
    data["velocity_projections"] = torch.cat(rows).unflatten(0, (4, 2))
    request = {**SAMPLER, "tolerance": 1e-3, "velocity_tolerance": VELOCITY_TOLERANCES[torch.bfloat16]}
    if wrong:
        with pytest.raises(
            VelocityMismatch,
            match="trainer's velocities are 0.0.* (larger|smaller) than"
            if wrong < 0.05
            else "velocities (of engine|are)",
        ):
            actor.update(data, **request)
        return
    measured = actor.update(data, **request)
    assert measured["rollout_corr/velocity_rel_diff"] > 1e-3, "there is rounding"
    assert abs(measured["rollout_corr/velocity_size_diff"]) < 1e-3


def broken(actor: DiffusionActor, times: int) -> None:
    """Make the next `times` gradients infinite; the loss stays finite."""
    parameter = actor.trained[0]
    left = [times]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        return gradient * float("inf") if left[0] >= 0 else gradient

    parameter.register_hook(spoil)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(model_folder: Path) -> None:
    actor = make(model_folder, max_skipped_steps=1)
    data = batch(actor, steps=1)
    before = weights_of(actor)
    broken(actor, times=1)
    skipped = actor.update(data, **SAMPLER)
    assert (skipped["actor/skipped_steps"], skipped["actor/optimizer_steps"]) == (1, 0)
    assert "actor/grad_norm" not in skipped and actor.scheduler.last_epoch == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(actor).items())
    taken = actor.update(data, **SAMPLER)
    assert (taken["actor/skipped_steps"], taken["actor/optimizer_steps"]) == (0, 1) and taken["actor/grad_norm"] > 0


def test_too_many_skipped_steps_in_a_row_end_the_run(model_folder: Path) -> None:
    actor = make(model_folder, max_skipped_steps=1)
    data = batch(actor, steps=1)
    for _ in range(2):  # a step that is taken in between starts the count again
        broken(actor, times=1)
        actor.update(data, **SAMPLER)
        actor.update(data, **SAMPLER)
    broken(actor, times=2)
    actor.update(data, **SAMPLER)
    with pytest.raises(FloatingPointError, match=r"2 optimizer steps in a row were skipped .*max_skipped_steps=1"):
        actor.update(data, **SAMPLER)


def kl_of_all_weights(actor: DiffusionActor, base: DiffusionActor, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean KL of Flow-GRPO over rows and steps, float64, from the velocities of two actors; with its gradient.

    m - m_base = (v - v_base) dt (1 + g^2 (1 - sigma) / (2 sigma)) for `sde` (arXiv:2505.05470, eq. 9), and
    g = noise_level sqrt(sigma / (1 - sigma)).
    """
    divergences = []
    for step in range(2):
        x = data["all_latents"][:, step]
        time = data["all_timesteps"][:, step]
        with torch.no_grad():
            there = base.policy.velocity(data, x, time, 1).double()
        here = actor.policy.velocity(data, x, time, 1).double()
        now, after = (data["all_sigmas"][0, point].double() for point in (step, step + 1))
        diffusion = SAMPLER["noise_level"] * (now / (1 - now)).sqrt()
        shift = (here - there) * (after - now) * (1 + diffusion**2 * (1 - now) / (2 * now))
        divergences.append(shift.square().flatten(1).mean(1) / (2 * diffusion**2))
    return torch.stack(divergences).mean()


@pytest.mark.parametrize("fsdp", [DiffusionFSDPConfig(), BFLOAT16], ids=["float32", "bfloat16"])
def test_with_all_weights_trained_the_kl_is_that_to_the_weights_of_the_folder(
    model_folder: Path, tmp_path: Path, fsdp: DiffusionFSDPConfig
) -> None:
    """Also after a resume, and its gradient equals a float64 reference."""
    changes: dict[str, Any] = {"rank": 0, "fsdp_config": fsdp, "optim": DiffusionOptimizerConfig(lr=1e-3)}
    first = make(model_folder, **changes, use_kl_loss=True, kl_loss_coef=1.0, grad_clip=1e9)
    data = batch()
    assert first.update(data, **SAMPLER)["actor/kl"] == 0
    first.save(tmp_path)
    actor = make(model_folder, **changes, use_kl_loss=True, kl_loss_coef=1.0, grad_clip=1e9)
    actor.load(tmp_path)
    data["advantages"] = torch.zeros(4)  # only the KL has a gradient
    expected = kl_of_all_weights(actor, make(model_folder, **changes), data)
    expected.backward()
    norm = torch.cat([build.gather(p.grad).flatten().double() for p in actor.trained if p.grad is not None]).norm()
    actor.optimizer.zero_grad()
    metrics = actor.update(data, **SAMPLER)
    assert metrics["actor/kl"] == pytest.approx(expected.item(), rel=1e-4) and expected > 0
    assert metrics["actor/grad_norm"] == pytest.approx(norm.item(), rel=1e-2 if fsdp is BFLOAT16 else 1e-4)


def test_the_kl_loss_of_sde_is_scaled_by_the_step_size_unless_it_is_exact(model_folder: Path) -> None:
    divergences = []
    for exact in (False, True):
        actor = make(model_folder, use_kl_loss=True, diffusion_loss=FlowGRPOLossConfig(exact_kl=exact))
        data = batch(actor)
        actor.update(data, **SAMPLER)
        divergences.append(actor.update(data, **SAMPLER)["actor/kl"])
    assert divergences[0] == pytest.approx(0.3 * divergences[1], rel=1e-3), "all steps of the batch have the size 0.3"


def test_a_cosine_ends_with_the_last_optimizer_step(model_folder: Path) -> None:
    """Two mini-batches and two epochs make four optimizer steps of a training step."""
    optim = DiffusionOptimizerConfig(lr=1e-2, lr_scheduler_type="cosine", lr_warmup_steps=2, total_training_steps=8)
    actor = make(model_folder, optim=optim, ppo_epochs=2, ppo_mini_batch_size=1)
    data = batch(actor)
    rates = [actor.update(data, **SAMPLER)["actor/lr"] for _ in range(2)]
    assert actor.scheduler.last_epoch == 8 and actor.scheduler.get_last_lr() == [pytest.approx(0, abs=1e-9)]
    assert rates[0] == pytest.approx(1e-2 * (0.5 + 1 + 1 + 0.9330) / 4, rel=1e-3)


@pytest.mark.parametrize(("floor", "cycles"), [(0.0, 0.5), (0.2, 0.5), (0.2, 1.5)])
def test_a_schedule_is_that_of_verl(floor: float, cycles: float) -> None:
    optim = DiffusionOptimizerConfig(
        lr_scheduler_type="cosine", lr_warmup_steps=3, total_training_steps=12, min_lr_ratio=floor, num_cycles=cycles
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_cosine_schedule_with_warmup(optimizer, 3, 12, min_lr_ratio=floor, num_cycles=cycles)
    expected = [theirs.lr_lambdas[0](step) for step in range(3, 13)]
    assert [learning_rate_factor(step, optim) for step in range(3, 13)] == pytest.approx(expected)
    assert learning_rate_factor(20, optim) == learning_rate_factor(12, optim), "not after its end, where verl's rises"


@pytest.mark.parametrize("rank", [4, 0])
def test_a_loaded_checkpoint_resumes_bit_exactly(model_folder: Path, tmp_path: Path, rank: int) -> None:
    first = make(model_folder, rank=rank, shuffle=True)
    data = batch(first)
    first.update(data, **SAMPLER)
    first.save(tmp_path)
    expected = [first.update(data, **SAMPLER) for _ in range(2)]
    two = make(model_folder, rank=rank, shuffle=True)
    two.load(tmp_path)
    assert [two.update(data, **SAMPLER) for _ in range(2)] == expected
    kind = "lora" if rank else "full"
    for (name, tensor), (_, theirs) in zip(first.weights(kind), two.weights(kind), strict=True):  # type: ignore[arg-type]
        assert torch.equal(tensor, theirs), name


def test_a_resumed_run_takes_the_optimizer_settings_that_it_is_given(model_folder: Path, tmp_path: Path) -> None:
    """Moments and the place in the schedule come from the checkpoint."""
    schedule: dict[str, Any] = {"lr_scheduler_type": "cosine", "lr_warmup_steps": 3, "total_training_steps": 10}
    first = DiffusionOptimizerConfig(lr=1e-2, weight_decay=0.1, **schedule)
    saved = make(model_folder, ppo_mini_batch_size=1, optim=first)
    data = batch(saved)
    saved.update(data, **SAMPLER)
    saved.save(tmp_path)
    changed = DiffusionOptimizerConfig(
        lr=1e-4, weight_decay=0.0, betas=(0.8, 0.95), override_optimizer_config={"eps": 1e-5}, **schedule
    )
    resumed = make(model_folder, ppo_mini_batch_size=1, optim=changed)
    resumed.load(tmp_path)
    (group,) = resumed.optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.95), 1e-5, 0.0)
    assert (resumed.scheduler.last_epoch, resumed.scheduler.base_lrs, group["initial_lr"]) == (2, [1e-4], 1e-4)
    assert group["lr"] == resumed.scheduler.get_last_lr()[0] == pytest.approx(1e-4), (
        "the third of three steps of warm-up"
    )
    for mine, theirs in zip(saved.trained, resumed.trained, strict=True):
        before = saved.optimizer.state[mine]
        after = resumed.optimizer.state[theirs]
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    rates = [resumed.update(data, **SAMPLER)["actor/lr"] for _ in range(2)]
    factors = [learning_rate_factor(step, changed) for step in range(2, 6)]
    assert rates == pytest.approx([1e-4 * sum(factors[start : start + 2]) / 2 for start in (0, 2)])


def test_weights_leave_in_the_dtype_of_the_engine(model_folder: Path) -> None:
    actor = make(model_folder, rank=0)
    sent, trained = (dict(actor.weights("full", dtype=dtype)) for dtype in (torch.bfloat16, None))
    assert sent.keys() == trained.keys() and {tensor.dtype for tensor in trained.values()} == {torch.float32}
    assert all(torch.equal(tensor, trained[name].bfloat16()) for name, tensor in sent.items())


def test_a_layer_to_adapt_that_the_model_does_not_have_is_refused(model_folder: Path) -> None:
    """peft adapts the others, so that a misspelt one would be left out silently."""
    with pytest.raises(ValueError, match=r"the transformer has no layer attn\.to_qq; did you mean attn\.to_q\?"):
        make_actor(model_settings(model_folder, ["attn.to_k", "attn.to_qq"]))


def test_a_checkpoint_of_another_adapter_or_optimizer_is_refused(model_folder: Path, tmp_path: Path) -> None:
    make(model_folder).save(tmp_path)
    advice = "write model.target_modules=[attn.to_k,attn.to_out.0,attn.to_q,attn.to_v,ff.net.2]"
    with pytest.raises(ValueError, match=rf"lora_rank or model\.target_modules changed\? .*{re.escape(advice)}"):
        make(model_folder, rank=0).load(tmp_path)
    with pytest.raises(ValueError, match=r"20 trained tensors of other shapes .* instead of \(8, 32\); was model"):
        make(model_folder, rank=8).load(tmp_path)
    amsgrad = DiffusionOptimizerConfig(override_optimizer_config={"amsgrad": True})
    with pytest.raises(ValueError, match=r"has no state\..*max_exp_avg_sq: was actor.optim.override"):
        make(model_folder, optim=amsgrad).load(tmp_path)


def test_a_training_state_that_cannot_be_read_is_an_error_with_its_cause(model_folder: Path, tmp_path: Path) -> None:
    """Torch's own is no `Exception`: a worker of Ray would not pass it on."""
    make(model_folder).save(tmp_path)
    shards = next(tmp_path.glob("*.distcp"))
    shards.write_bytes(shards.read_bytes()[:2000])
    with pytest.raises(OSError, match=r"^rank 0 could not read the training state of .*: \w+") as failed:
        make(model_folder).load(tmp_path)
    assert str(tmp_path) in str(failed.value)


def test_diffusers_reads_the_adapter(model_folder: Path, tmp_path: Path) -> None:
    from diffusers import StableDiffusion3Pipeline

    actor = make(model_folder)
    data = batch(actor)
    for _ in range(3):
        actor.update(data, **SAMPLER)
    actor.save_adapter(tmp_path)
    pipe = StableDiffusion3Pipeline.from_pretrained(model_folder)
    inputs = {
        "hidden_states": data["all_latents"][:, 0],
        "timestep": data["all_timesteps"][:, 0],
        "encoder_hidden_states": data["prompt_embeds"],
        "pooled_projections": data["pooled_prompt_embeds"],
        "return_dict": False,
    }
    with torch.no_grad():
        base = pipe.transformer(**inputs)[0]
        pipe.load_lora_weights(tmp_path)
        theirs = pipe.transformer(**inputs)[0]
        ours = actor.module(**inputs)[0]
    assert torch.allclose(theirs, ours, atol=1e-5)
    assert not torch.allclose(base, ours, atol=1e-3)
