"""Operator and trainer accept the same names of overrides."""

from __future__ import annotations

import pytest

from omni_operator.api.overrides.override_names import describe_reserved, describe_unsupported
from verl_omni.settings_schema.reference_settings import Copied, Renamed, rules
from verl_omni.trainer.settings import configuration

REQUIRED = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"


def refused_by_trainer(override: str, loss: str) -> bool:
    try:
        configuration.load([*REQUIRED, f"{LOSS}={loss}", override])
    except configuration.SettingsError as error:
        return any(
            word in str(error) for word in ("unknown setting", "Could not append", "already", "is not supported")
        )
    return False


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["flow_grpo", "diffusion_nft"])
@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("", "data.shuffle"),
        ("+", "data.shuffle"),
        ("++", "data.shuffle"),
        ("", "data.shufle"),
        ("+", "data.shufle"),
        ("++", "data.shufle"),
        ("", "actor_rollout_ref.actor.diffusion_loss.clip_ratio"),
        ("", "actor_rollout_ref.actor.diffusion_loss.mix_beta"),
        ("", "data.mm_processor_kwargs.new"),
        ("", "actor_rollout_ref.actor.diffusion_loss.dpo_beta"),
        ("+", "data.mm_processor_kwargs.new"),
        ("++", "data.mm_processor_kwargs.new"),
        ("", "loss"),
        ("", "trainer"),
    ],
)
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
        configuration.load([*REQUIRED, *(f"{name}={value}" for name in names)])
        refused = []
    except configuration.SettingsError as error:
        refused = [line.partition(":")[0] for line in str(error).splitlines()]
    assert [name for name in names if describe_unsupported(name, value, "flow_grpo")] == refused


ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni"


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("{flow_shift:3, vae-use-tiling: true}", None),
        ("{}", None),
        ("{cache_config:{no_such:1}}", None),
        ("{ flow_shift: 3,no_such:1}", f"{ENGINE}.no_such: unknown setting"),
        ("{vae_use_tilling:true}", f"{ENGINE}.vae_use_tilling: unknown setting; did you mean"),
    ],
)
def test_names_in_a_group_of_settings_of_the_engine_are_checked(value: str, refused: str | None) -> None:
    said = describe_unsupported(ENGINE, value, "flow_grpo")
    assert (said or "").startswith(refused or "") and bool(said) is bool(refused)


def test_an_override_may_not_set_by_another_name_what_a_field_sets() -> None:
    assert describe_reserved("actor_rollout_ref.actor.fsdp_config.dtype") == (
        "actor_rollout_ref.actor.fsdp_config.dtype is reserved: spec.trainer.precision sets it"
    )
    assert describe_reserved("actor_rollout_ref.model.pipeline.height")
    assert describe_reserved("actor_rollout_ref.actor.optim.clip_grad") is None
