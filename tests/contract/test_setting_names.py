"""Operator and trainer accept the same names of overrides."""

from __future__ import annotations

import pytest

from omni_operator.api.override_names import describe_unknown
from omni_operator.api.setting_names import BY_LOSS, COMMON
from verl_omni.trainer import settings

REQUIRED = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"


def refused_by_trainer(override: str, loss: str) -> bool:
    try:
        settings.load([*REQUIRED, f"{LOSS}={loss}", override])
    except settings.SettingsError as error:
        return any(word in str(error) for word in ("unknown setting", "Could not append", "already"))
    return False


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(BY_LOSS))
@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("", "data.shuffle"), ("+", "data.shuffle"), ("++", "data.shuffle"), ("", "data.shufle"), ("+", "data.shufle"),
        ("++", "data.shufle"), ("", "actor_rollout_ref.actor.diffusion_loss.clip_ratio"),
        ("", "actor_rollout_ref.actor.diffusion_loss.beta"), ("", "data.mm_processor_kwargs.new"),
        ("+", "data.mm_processor_kwargs.new"), ("++", "data.mm_processor_kwargs.new"), ("", "loss"), ("", "trainer"),
    ],
)  # fmt: skip
def test_operator_and_trainer_agree_on_the_name_of_an_override(loss: str, mark: str, name: str) -> None:
    value = "{seed: 1}" if name == "trainer" else "1"
    assert bool(describe_unknown(mark, name, loss)) == refused_by_trainer(f"{mark}{name}={value}", loss)


def test_no_name_is_in_two_lists() -> None:
    assert len(COMMON) > 150
    assert [name for names in BY_LOSS.values() for name in names if name in COMMON] == []
