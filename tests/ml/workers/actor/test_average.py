"""The moving average of the trained weights: its values, what is sent and saved, and checkpoints."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.workers.tiny_actor import ADVANTAGES, make_actor, model_settings, recorded_steps, weights_of
from verl_omni.utils import adapter_folder
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.actor.policy import average_decay
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig
from verl_omni.workers.config import DiffusionActorConfig

SAMPLER = {"noise_level": 0.7, "sde_type": "cps"}
DECAY = 0.28  # reached in the third optimizer step


def make(folder: Path, rank: int = 4, decay: float | None = DECAY) -> DiffusionActor:
    return make_actor(model_settings(folder, ["attn.to_q"], rank=rank), ppo_mini_batch_size=1, ema_decay=decay)


def batch() -> dict[str, torch.Tensor]:
    return {
        **recorded_steps(4, [0.9, 0.6, 0.3]),
        "advantages": ADVANTAGES,
        "rollout_log_probs": torch.zeros(4, 2),
    }


@pytest.mark.parametrize("rank", [4, 0], ids=["adapter", "all weights"])
def test_the_average_follows_every_optimizer_step_and_training_does_not_notice_it(
    model_folder: Path, rank: int
) -> None:
    actor = make(model_folder, rank)
    plain = make(model_folder, rank, None)
    data = batch()
    average = {name: value.detach().double() for name, value in actor.policy.trained.items()}
    decays = iter((2 / 11, 3 / 12, *[DECAY] * 4))

    def stepped(*_: Any) -> None:
        decay = next(decays)
        for name, value in actor.policy.trained.items():
            average[name] = decay * average[name] + (1 - decay) * value.detach().double()

    actor.optimizer.register_step_post_hook(stepped)
    for _ in range(3):  # of two optimizer steps each
        assert actor.update(data, **SAMPLER) == plain.update(data, **SAMPLER)
    kept = actor.policy.require_average().values
    for name, value in average.items():
        torch.testing.assert_close(kept[name].double(), value, rtol=1e-6, atol=1e-8)
    sent = weights_of(actor, "average")
    trained = weights_of(actor)
    assert sent.keys() == trained.keys()
    moved = [name for name in sent if not torch.equal(sent[name], trained[name])]
    assert len(moved) == len(kept)


@pytest.mark.parametrize(("decay", "steps", "start"), [(0.999, 300, 1e-6), (0.99, 60, 1e-6), (0.9, 60, 1e-3)])
def test_the_average_forgets_its_start(decay: float, steps: int, start: float) -> None:
    """Without a warm-up it would still have 74% of the start after 300 steps with 0.999."""
    assert math.prod(average_decay(step, decay) for step in range(1, steps + 1)) < start
    assert average_decay(100_000, decay) == decay, "later it is the decay that was asked for"


def test_a_skipped_step_leaves_the_average(model_folder: Path) -> None:
    actor = make(model_folder)
    actor.update(batch(), **SAMPLER)  # so that the average is not where the weights are
    before = {name: value.clone() for name, value in actor.policy.require_average().values.items()}
    actor.trained[0].register_hook(lambda gradient: gradient * float("nan"))
    metrics = actor.update(batch(), **SAMPLER)
    assert metrics["actor/skipped_steps"] == 2
    assert all(torch.equal(before[name], value) for name, value in actor.policy.require_average().values.items())


def test_a_resumed_run_continues_the_average_and_saves_it_as_the_adapter(model_folder: Path, tmp_path: Path) -> None:
    first = make(model_folder)
    two = make(model_folder)
    data = batch()
    first.update(data, **SAMPLER)
    first.save(tmp_path / "state")
    two.load(tmp_path / "state")
    assert first.update(data, **SAMPLER) == two.update(data, **SAMPLER)
    wanted = weights_of(first, "average")
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights_of(two, "average").items())
    two.save_adapter(tmp_path / "lora")
    saved, _ = adapter_folder.read(tmp_path / "lora")
    assert {f"transformer.{name}" for name in saved} == wanted.keys()
    assert all(torch.equal(tensor, wanted[f"transformer.{name}"]) for name, tensor in saved.items())


def test_without_the_average_a_checkpoint_cannot_continue_it(model_folder: Path, tmp_path: Path) -> None:
    make(model_folder, decay=None).save(tmp_path / "state")
    with pytest.raises(ValueError, match=r"has no average of the weights: actor\.ema_decay was not set in its run"):
        make(model_folder).load(tmp_path / "state")
    make(model_folder).save(tmp_path / "with")
    make(model_folder, decay=None).load(tmp_path / "with")
    with pytest.raises(ValueError, match=r"set actor\.ema_decay"):
        make(model_folder, decay=None).weights("lora", "average")


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 2.0])
def test_a_decay_outside_of_0_and_1_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="ema_decay: must be between 0 and 1, or null"):
        DiffusionActorConfig(diffusion_loss=FlowGRPOLossConfig(), ema_decay=decay)
