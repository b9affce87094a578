"""Operator and trainer accept the same names of overrides."""

from __future__ import annotations

import pytest

from omni_operator.api.override_names import describe_reserved, describe_unsupported
from omni_operator.api.setting_names import BY_LOSS, COMMON
from verl_omni.trainer import settings
from verl_omni.utils.reference_settings import Copied, Renamed, rules

REQUIRED = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"


def refused_by_trainer(override: str, loss: str) -> bool:
    try:
        settings.load([*REQUIRED, f"{LOSS}={loss}", override])
    except settings.SettingsError as error:
        return any(
            word in str(error) for word in ("unknown setting", "Could not append", "already", "is not supported")
        )
    return False


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(BY_LOSS))
@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("", "data.shuffle"), ("+", "data.shuffle"), ("++", "data.shuffle"), ("", "data.shufle"), ("+", "data.shufle"),
        ("++", "data.shufle"), ("", "actor_rollout_ref.actor.diffusion_loss.clip_ratio"),
        ("", "actor_rollout_ref.actor.diffusion_loss.mix_beta"), ("", "data.mm_processor_kwargs.new"),
        ("", "actor_rollout_ref.actor.diffusion_loss.dpo_beta"),
        ("+", "data.mm_processor_kwargs.new"), ("++", "data.mm_processor_kwargs.new"), ("", "loss"), ("", "trainer"),
    ],
)  # fmt: skip
def test_operator_and_trainer_agree_on_the_name_of_an_override(loss: str, mark: str, name: str) -> None:
    value = "{seed: 1}" if name == "trainer" else "1"
    assert bool(describe_unsupported(name, value, loss)) == refused_by_trainer(f"{mark}{name}={value}", loss)


REFERENCE = {name: rule for name, rule in rules().items() if not name.endswith(".*") and "/" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("value", ["true", "False", "0", "1.0", "null", "1e-5", "online", "[model, optimizer, extra]"])
def test_operator_and_trainer_agree_on_the_values_of_settings_of_the_reference(value: str) -> None:
    """By the lines of one refusal; a copy is compared with its original by the trainer only."""
    names = [name for name, rule in REFERENCE.items() if not isinstance(rule, Copied | Renamed)]
    try:
        settings.load([*REQUIRED, *(f"{name}={value}" for name in names)])
        refused = []
    except settings.SettingsError as error:
        refused = [line.partition(":")[0] for line in str(error).splitlines()]
    assert [name for name in names if describe_unsupported(name, value, "flow_grpo")] == refused


def test_an_override_may_not_set_by_another_name_what_a_field_sets() -> None:
    assert describe_reserved("actor_rollout_ref.actor.fsdp_config.dtype") == (
        "actor_rollout_ref.actor.fsdp_config.dtype is reserved: spec.trainer.precision sets it"
    )
    assert describe_reserved("actor_rollout_ref.model.pipeline.height")
    assert describe_reserved("actor_rollout_ref.actor.optim.clip_grad") is None


def test_no_name_is_in_two_lists() -> None:
    assert len(COMMON) > 150
    assert [name for names in BY_LOSS.values() for name in names if name in COMMON] == []
