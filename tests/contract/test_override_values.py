"""A job is refused for an override whose value the trainer refuses: of another type, or out of its range."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from omni_operator import plan
from omni_operator.api import JobError, load_job
from omni_operator.api.overrides.reserved import owner_of
from omni_operator.api.overrides.setting_names import (
    BY_LOSS,
    COMMON,
    GROUPS,
    NOT_NEGATIVE,
    NUMBERS,
    PAIRS,
    POSITIVE,
    REJECTED,
    SWITCHES,
)
from omni_operator.api.spec.training import LOSSES
from verl_omni.trainer.settings import configuration

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"
ACTOR = "actor_rollout_ref.actor"
FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
KNOWN = {*COMMON, *BY_LOSS[LOSSES["FlowGRPO"]]}
CHECKED = sorted(name for name in {*NUMBERS, *SWITCHES, *PAIRS, *GROUPS} & KNOWN if owner_of(name) is None)
VALUES = ["", "null", "true", "text", "-1", "0", "1e-3", "nan", "[0,1e-3]", "{a: 1}"]
WITH_ADVICE = {name for _, _, names in REJECTED for name in names}  # of which both say more
# What the trainer says of types and groups; of ranges only of settings whose ranges are known here.
CHECKS = re.compile(r"write (a number|true or false|two numbers)|must be a group of settings")
WITH_RANGE = {*POSITIVE, *NOT_NEGATIVE}


@pytest.fixture(scope="module")
def overrides() -> list[str]:
    """What the trainer gets of the example."""
    loaded = load_job(EXAMPLE).job
    return plan.render_overrides(loaded, plan.local_layout(loaded, "/runs"))


def refused_in_job(lines: list[str]) -> dict[str, str]:
    """What is wrong with the overrides of a job, by their place in it."""
    try:
        load_job(EXAMPLE, [f"spec.algorithm.overrides={json.dumps(lines)}"])
    except JobError as error:
        return {problem.field.removeprefix("spec.algorithm."): problem.text for problem in error.problems}
    return {}


def refused_by_trainer(given: list[str]) -> list[str]:
    try:
        configuration.load(given)
    except ValueError as error:
        return str(error).splitlines()
    return []


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_every_setting_takes_the_values_that_the_trainer_takes(value: str, overrides: list[str]) -> None:
    assert len(CHECKED) > 60
    for name in CHECKED:
        said = refused_by_trainer([*overrides, f"{name}={value}"])
        here = list(refused_in_job([f"{name}={value}"]).values())
        assert said or not here or name == FSDP_SIZE, f"{name}={value}: {here}"  # that one the actor checks
        of_setting = [line for line in said if line.startswith(f"{name}: ")]
        if of_value := [line for line in of_setting if name in WITH_RANGE or CHECKS.search(line)]:
            assert here, of_value
            # A list or mapping is shown as each side reads it, and only the trainer knows of scripts.
            same = any(line.startswith(here[0]) for line in of_value)
            assert same or value[:1] in ("[", "{") or name in WITH_ADVICE, (of_value, here)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"{ACTOR}.grad_clip=0", "must be positive: 0; for gradients that are not clipped, write inf"),
        (f"{ACTOR}.optim.weight_decay=-0.1", "must not be negative: -0.1"),
        (f"+{ACTOR}.optim.betas=[0.9]", "[0.9] is not supported; write two numbers, such as [0.9,0.999]"),
        ("data.shuffle=maybe", "the text 'maybe' is not supported; write true or false"),
        ("reward.batch_size=", "has no value; write a number"),
        ("reward.batch_size=null", "null is not supported; write a number"),
        ("ray_kwargs=null", "must be a group of settings, not null"),
    ],
)
def test_the_message_names_the_override_and_what_to_write(line: str, text: str) -> None:
    ((at, said),) = refused_in_job(["trainer.val_before_train=true", line]).items()
    assert at == "overrides[1]"
    assert said == f"{line.partition('=')[0].strip('+')}: {text}"


@pytest.mark.parametrize(
    "lines",
    [
        [f"{ACTOR}.grad_clip=0", f"{ACTOR}.grad_clip=inf"],  # the last one counts
        ["data.shuffle=maybe", "data.shuffle=${trainer.val_before_train}"],
        ["ray_kwargs.ray_init=1", "ray_kwargs={ray_init: {num_cpus: 2}}"],  # replaced with its group
        [f"{ACTOR}.optim.betas=[0.9, 1e-3]", "data.shuffle=1"],
        [f"{ACTOR}.diffusion_loss.mix_beta=text"],  # of another algorithm, so it is not read
    ],
)
def test_values_that_the_trainer_does_not_read_are_not_refused(lines: list[str]) -> None:
    assert refused_in_job(lines) == {}


def test_another_entry_point_has_settings_of_its_own() -> None:
    changes = ['spec.algorithm.entrypoint=["my-trainer"]', 'spec.algorithm.overrides=["data.shuffle=maybe"]']
    load_job(EXAMPLE, changes)
