"""Losses and estimators of advantages registered by the reference's decorators, in the reference's form."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from tests.ml import smallest_job
from verl_omni.trainer.diffusion.diffusion_algos import (
    DiffusionLossFn,
    DiffusionLossResult,
    register_diffusion_adv_est,
    register_diffusion_loss,
)
from verl_omni.workers.algorithms import reference_loss
from verl_omni.workers.algorithms.base import training_algorithm
from verl_omni.workers.algorithms.estimators import ESTIMATORS
from verl_omni.workers.algorithms.flow_grpo import COMPARED
from verl_omni.workers.algorithms.registered import ALGORITHMS

LOSS = "actor_rollout_ref.actor.diffusion_loss"
EXTERNAL = "actor_rollout_ref.model.external_lib=their_module"
# As a user of the reference writes it.
MODULE = """
import torch
from verl_omni.extensions import register_loss
from verl_omni.trainer.diffusion.diffusion_algos import (
    DiffusionLossFn, DiffusionLossResult, register_diffusion_adv_est, register_diffusion_loss,
)


@register_loss("their_function")
def their_function(log_ratio, advantages, settings):
    return -log_ratio


@register_diffusion_loss("their_loss")
class TheirLoss(DiffusionLossFn):
    required_model_output_keys = ["log_probs"]
    required_data_keys = ["old_log_probs", "advantages"]
    by_row = False

    def __call__(self, *, config, model_output, data):
        settings = config.diffusion_loss
        ratio = (model_output["log_probs"] - data["old_log_probs"]).exp()
        limit = settings.adv_clip_max
        advantages = data["advantages"].clamp(-limit, limit)
        clipped = ratio.clamp(1 - settings.clip_ratio, 1 + settings.clip_ratio)
        loss = torch.maximum(-advantages * ratio, -advantages * clipped)
        return DiffusionLossResult(loss if self.by_row else loss.mean(), {"ratio_mean": ratio.mean()})


@register_diffusion_adv_est("their_advantages")
def advantages(rewards, groups, settings):
    return rewards - rewards.mean()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for registry in (ALGORITHMS, ESTIMATORS):
        monkeypatch.setattr(registry, "_entries", dict(registry))  # type: ignore[attr-defined]
    (tmp_path / "their_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    smallest_job.load(EXTERNAL)
    yield sys.modules["their_module"]
    sys.modules.pop("their_module", None)


def objective(loss_mode: str, **arguments: Any) -> Any:
    config = smallest_job.load(EXTERNAL, f"{LOSS}.loss_mode={loss_mode}", f"{LOSS}.clip_ratio=0.1")
    actor = config.actor_rollout_ref.actor
    loss = omega_conf_to_dataclass(actor.diffusion_loss)
    actor_config = SimpleNamespace(use_kl_loss=False, diffusion_loss=loss)
    sampler = {"noise_level": 0.7, "sde_type": "sde", **arguments}
    policy: Any = SimpleNamespace()
    return training_algorithm(loss_mode).objective(policy, loss, actor_config, sampler)  # type: ignore[arg-type]


def part(rows: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    advantages = torch.randn(rows, generator=generator)
    old = 100 * torch.randn(rows, generator=generator)
    return {"advantages": 4 * advantages, COMPARED: old}


def gradient(made: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The mean loss, its gradient by the log-ratio, and what was measured."""
    ratio = torch.linspace(-0.3, 0.3, len(batch["advantages"])).requires_grad_()
    loss, measured = made.policy_loss(batch, 0, ratio, ratio, ratio)
    assert loss.shape == ratio.shape
    (gradients,) = torch.autograd.grad(loss.mean(), ratio)
    return loss.mean().detach(), gradients, measured


@pytest.mark.parametrize("by_row", [False, True])
def test_a_clipped_loss_in_their_form_is_flow_grpos(module: Any, by_row: bool) -> None:
    module.TheirLoss.by_row = by_row
    loss, gradients, measured = gradient(objective("their_loss"), part())
    wanted_loss, wanted, _ = gradient(objective("flow_grpo"), part())
    assert (wanted == 0).any() and (wanted != 0).any(), "both sides of the clip range are tested"
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-5)
    assert measured["difference"].tolist() == pytest.approx(torch.linspace(-0.3, 0.3, 6).tolist())


def test_its_metrics_are_reported() -> None:
    update = objective("their_loss")
    loss, _, measured = gradient(update, part())
    update.at_start = False
    metrics = update.summarize(measured, 6)
    assert metrics["actor/ratio_mean"] == pytest.approx(torch.linspace(-0.3, 0.3, 6).exp().mean().item(), abs=1e-5)
    assert metrics["actor/loss_of_TheirLoss"] == pytest.approx(loss.item())


@pytest.mark.parametrize("loss", ["their_loss", "their_function"])
def test_rows_with_advantage_zero_are_given_to_it(loss: str) -> None:
    """It may have a gradient there: several ranks compute these rows, and one process must not leave them out."""
    batch = {"advantages": torch.tensor([0.0, 1.0])}
    assert objective(loss).rows_with_gradient(batch).tolist() == [True, True]


def test_a_mean_is_refused_where_rows_have_weights(module: Any) -> None:
    update = objective("their_loss", rollout_is="token")
    with pytest.raises(ValueError, match=r"TheirLoss returned the mean of its rows, and .*return the loss of each row"):
        gradient(update, part())
    module.TheirLoss.by_row = True
    gradient(update, part())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(()), "returned a Tensor, expected a DiffusionLossResult"),
        (DiffusionLossResult(torch.zeros(2, 3)), r"returned a loss \[2, 3\], expected \[6\] or a mean"),
    ],
)
def test_a_wrong_result_is_refused(module: Any, monkeypatch: pytest.MonkeyPatch, result: Any, message: str) -> None:
    monkeypatch.setattr(module.TheirLoss, "__call__", lambda self, **given: result)
    with pytest.raises((TypeError, ValueError), match=f"TheirLoss {message}"):
        gradient(objective("their_loss"), part())


class ReadsMeans(DiffusionLossFn):
    required_model_output_keys = ("prev_sample_mean",)

    def __call__(self, **given: Any) -> Any:
        raise AssertionError(given)


class Plain(DiffusionLossFn):
    def __call__(self, **given: Any) -> Any:
        return DiffusionLossResult(given["model_output"]["log_probs"])


def test_what_cannot_work_is_refused_when_it_is_registered() -> None:
    problem = r"required_model_output_keys: this trainer does not have prev_sample_mean, only log_probs"
    with pytest.raises(ValueError, match=problem):
        register_diffusion_loss("reads_means")(ReadsMeans)
    with pytest.raises(TypeError, match=r"takes a subclass of DiffusionLossFn, .*verl_omni.extensions.register_loss"):
        register_diffusion_loss("function")(lambda **given: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="algorithm 'flow_grpo' exists already"):
        register_diffusion_loss("flow_grpo")(Plain)
    assert register_diffusion_loss("plain")(Plain) is Plain and "plain" in ALGORITHMS


def test_inputs_are_checked_by_the_base_class() -> None:
    with pytest.raises(ValueError, match="ReadsMeans needs prev_sample_mean; there is log_probs"):
        ReadsMeans().validate_inputs({"log_probs": torch.zeros(1)}, {})
    assert set(reference_loss.DATA) == {"old_log_probs", "advantages"}


def test_an_estimator_of_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = smallest_job.load(EXTERNAL, "algorithm.adv_estimator=their_advantages")
    samples: Any = SimpleNamespace(tensors={}, scores=torch.tensor([0.0, 1.0, 5.0]), groups=["a", "a", "b"])
    batch = training_algorithm("flow_grpo").training_batch(samples, None, config, 1)
    assert batch["advantages"].tolist() == [-2, -1, 3]
    monkeypatch.setattr(sys.modules["their_module"], "advantages", lambda rewards, groups, given: (rewards, rewards))
    with pytest.raises(ValueError, match=r"their_advantages returned a tuple, expected a tensor \[B\]"):
        training_algorithm("flow_grpo").training_batch(samples, None, config, 1)
    assert callable(register_diffusion_adv_est("another")) and OmegaConf.is_config(config)
