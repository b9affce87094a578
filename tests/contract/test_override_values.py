"""A job is refused for an override whose value the trainer refuses: of another type, or out of its range."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from omni_operator import plan
from omni_operator.api import JobError, load_job
from omni_operator.api.overrides.override_names import parse_value
from verl_omni.settings_schema.declarations import SETTINGS, field_of
from verl_omni.settings_schema.layout import layout
from verl_omni.trainer.settings import configuration

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"
ACTOR = "actor_rollout_ref.actor"
FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
EMPTY = "has no value, such as from an empty variable of a script"
KNOWN = layout("flow_grpo")
# Settings that an override of the example may have, with values of the right type and of others.
NAMES = sorted(
    name
    for name in {*KNOWN.kinds, *KNOWN.groups, *SETTINGS}
    if field_of(name) is None and name not in ("", "hydra") and not name.endswith("_target_")
)
VALUES = st.sampled_from(
    [
        "",
        "null",
        "true",
        "text",
        "no",
        "[0,1e-3]",
        "[0,1,2]",
        "{a: 1}",
        "inf",
        "nan",
        "1e-3",
        "-1",
        "0",
        "1",
        "2.5",
        "7",
        "1e9",
    ]
) | st.integers(-(2**40), 2**40).map(str)
# Checks of one value; other messages are about several settings, which only the trainer knows in full.
CHECKS = re.compile(
    r"write (a number|true or false|two numbers)|must be a group of settings|is not supported; write |has no value|"
    r"must (be (positive|at most|from|a whole|a positive number of seconds|an integer)|not be negative)"
)


TEXTS = (
    "010 00 1_0 -0 +4 0x10 12:30 2026-11-29 1. .5 1e5 1E5 0.5e-3 1_000.5 007.5 5e e5 1.2.3 inf -inf true TRUE no NULL",
    "._ 1__0 1_ 1_.5 1._5 1.5_ 1.0e1_0",
    "[010,1e-4,true] {a:2026-01-01} {a:[1e-3]} [] {} '1' [\"1\",b]",
)


@pytest.mark.parametrize("text", " ".join(TEXTS).split())
def test_a_value_is_read_as_hydra_reads_it(text: str) -> None:
    read = OverridesParser.create().parse_override(f"name={text}").value()
    plain = OmegaConf.to_container(OmegaConf.create({"value": read}))
    assert repr(parse_value(text.replace(":", ": ") if text[0] == "{" else text)) == repr(plain["value"])  # type: ignore[index,call-overload]


def test_a_tag_that_its_value_does_not_have_is_a_text() -> None:
    assert parse_value("!!int x") == "!!int x"


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
@given(name=st.sampled_from(NAMES), value=VALUES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_job_refuses_the_values_that_the_trainer_refuses(name: str, value: str, overrides: list[str]) -> None:
    there = refused_by_trainer([*overrides, f"{name}={value}"])
    here = list(refused_in_job([f"{name}={value}"]).values())
    assert there or not here or name == FSDP_SIZE, f"{name}={value}: {here}"  # that one the actor checks
    for line in there:
        if line.startswith(f"{name}: ") and CHECKS.search(line):
            assert here, line
            # A list or mapping is shown as each side reads it.
            assert line == here[0] or value.startswith(("{", "[")), (line, here)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"{ACTOR}.grad_clip=0", "must be positive: 0; for gradients that are not clipped, write inf"),
        (f"{ACTOR}.optim.weight_decay=-0.1", "must not be negative: -0.1"),
        (f"+{ACTOR}.optim.betas=[0.9]", "[0.9] is not supported; write two numbers, such as [0.9,0.999]"),
        ("data.shuffle=maybe", "the text 'maybe' is not supported; write true or false"),
        ("reward.batch_size=", f"{EMPTY}; write a number"),
        (
            "algorithm.rollout_correction.rollout_is=",
            f"{EMPTY}; write null or token or sequence: weights are of a recorded step (token), or of a sample "
            "(sequence)",
        ),
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
        ["data.shuffle=${trainer.val_before_train}"],
        [f"{ACTOR}.optim.betas=[0.9, 1e-3]", "data.shuffle=1"],
        [f"{ACTOR}.diffusion_loss.mix_beta=text"],  # of another algorithm, so it is not read
    ],
)
def test_values_that_the_trainer_does_not_read_are_not_refused(lines: list[str]) -> None:
    assert refused_in_job(lines) == {}


GRAD_CLIP = f"{ACTOR}.grad_clip"
SAMPLED = "actor_rollout_ref.rollout.val_kwargs.pipeline"
ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni"


@pytest.mark.parametrize(
    ("lines", "setting"),
    [
        ([f"{GRAD_CLIP}=0.5", f"+{GRAD_CLIP}=1"], GRAD_CLIP),
        ([f"{GRAD_CLIP}=0.5", f"{GRAD_CLIP}=0.5"], GRAD_CLIP),
        ([f"{GRAD_CLIP}=0.5", f"{GRAD_CLIP}=${{actor_rollout_ref.actor.optim.eps}}"], GRAD_CLIP),
        ([f"{GRAD_CLIP}=0.5", f"{ACTOR}.optim.clip_grad=1"], GRAD_CLIP),  # a name of the reference
        (
            [f"{ENGINE}.enable-multithread-weight-load=true", f"{ENGINE}={{enable_multithread_weight_load: false}}"],
            f"{ENGINE}.enable_multithread_weight_load",
        ),
        ([f"{SAMPLED}.height=64", f"{SAMPLED}={{width: 64, height: 32}}"], f"{SAMPLED}.height"),
        (["ray_kwargs.ray_init={}", "ray_kwargs={ray_init: {num_cpus: 2}}"], "ray_kwargs.ray_init.num_cpus"),
    ],
)
def test_a_setting_that_two_overrides_set_is_refused(lines: list[str], setting: str) -> None:
    found = refused_in_job(["data.shuffle=true", *lines])
    assert found == {"overrides[2]": f"{setting}: already set by overrides[1]; remove one of the two"}
    assert [refused_in_job([line]) for line in lines] == [{}, {}], "each alone is accepted"


def test_settings_of_a_group_may_be_in_several_overrides() -> None:
    assert refused_in_job([f"{SAMPLED}={{width: 64}}", f"{SAMPLED}.height=32", "ray_kwargs.ray_init.num_cpus=2"]) == {}


def test_another_entry_point_has_settings_of_its_own() -> None:
    lines = ["data.shuffle=maybe", "data.shuffle=true"]
    changes = ['spec.algorithm.entrypoint=["my-trainer"]', f"spec.algorithm.overrides={json.dumps(lines)}"]
    load_job(EXAMPLE, changes)
