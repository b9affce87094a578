"""A job is refused for the overrides that the trainer refuses at its start, in the same words.

Names, types, ranges and values are the settings package's, which both import. Two parsers read the values, and fields
of the job stand for settings of the trainer: that is compared here.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from omni_operator import plan
from omni_operator.api import JobError, load_job
from omni_operator.api.overrides.override_names import describe_reserved, parse_value, setting_here
from verl_omni.settings_schema.declarations import SETTINGS, field_of
from verl_omni.settings_schema.layout import layout, names_of_algorithms
from verl_omni.settings_schema.reference_settings import rules
from verl_omni.trainer.settings import configuration
from verl_omni.workers.actor.setting_checks import check_fsdp_size

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
V1 = "trainer.v1"
ENGINE = f"{ROLLOUT}.engine_kwargs.vllm_omni"
FSDP = f"{ACTOR}.fsdp_config"
GRAD_CLIP = f"{ACTOR}.grad_clip"
SAMPLED = f"{ROLLOUT}.val_kwargs.pipeline"
CORRECTION = "algorithm.rollout_correction"
NFT = ["spec.algorithm.name=DiffusionNFT", "spec.rollout.sampler.noiseLevel=0"]
SEPARATE = ["spec.rollout.placement=Separate", "spec.rollout.batchesAhead=2"]
MIX = ["spec.algorithm.name=MixGRPO", "spec.rollout.sampler={noiseLevel: 0.7, window: {size: 2, end: 4}}"]
DPO = ["spec.algorithm.name=DiffusionDPO", "spec.rollout.sampler.noiseLevel=0"]
RANKS = ["spec.trainer.accelerator.count=4", "spec.rollout.replicas=4"]


def job(changes: list[str], overrides: list[str]) -> list[str]:
    """Assignments of the example with its changes and overrides."""
    return [*changes, f"spec.algorithm.overrides={json.dumps(overrides)}"]


def refused_in_job(lines: list[str], changes: list[str] | None = None) -> dict[str, str]:
    """What is wrong with the overrides of a job, by their place in it."""
    try:
        load_job(EXAMPLE, job(changes or [], lines))
    except JobError as error:
        return {problem.field.removeprefix("spec.algorithm."): problem.text for problem in error.problems}
    return {}


@cache
def rendered(*assignments: str) -> list[str]:
    """What the trainer gets of a valid job."""
    loaded = load_job(EXAMPLE, assignments).job
    overrides = plan.render_overrides(loaded, plan.local_layout(loaded, "/runs"))
    configuration.load(overrides)
    return overrides


def refused_by_trainer(changes: list[str], override: str, before: list[str]) -> list[str]:
    """The trainer's lines about a valid job and an override of it."""
    overrides = rendered(*job(changes, before))
    try:
        config = configuration.load([*overrides, override])
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        check_fsdp_size(ranks, config.actor_rollout_ref.actor.fsdp_config.fsdp_size)
    except ValueError as error:
        return str(error).splitlines()
    return []


# --- one override -------------------------------------------------------------------------------------------

TEXTS = (
    "010 00 1_0 -0 +4 0x10 12:30 2026-11-29 1. .5 1e5 1E5 0.5e-3 1_000.5 007.5 5e e5 1.2.3 inf -inf true TRUE no NULL",
    "._ 1__0 1_ 1_.5 1._5 1.5_ 1.0e1_0",
    "[010,1e-4,true] {a:2026-01-01} {a:[1e-3]} [] {} '1' [\"1\",b]",
)


@pytest.mark.parametrize("text", " ".join(TEXTS).split())
def test_a_value_is_read_as_hydra_reads_it(text: str) -> None:
    read = OverridesParser.create().parse_override(f"name={text}").value()
    plain = OmegaConf.to_container(OmegaConf.create({"value": read}))
    assert repr(parse_value(text.replace(":", ": ") if text[0] == "{" else text)) == repr(plain["value"])


def test_a_tag_that_its_value_does_not_have_is_a_text() -> None:
    assert parse_value("!!int x") == "!!int x"


OF_REFERENCE = [name for name in rules() if not name.endswith(".*") and "/" not in name and "-" not in name]
UNKNOWN = [
    f"{SAMPLED}.steps",
    f"{ROLLOUT}.val_kwargs.algo.clean_latents",
    "data.shufle",
    "loss",
    "trainer",
    "data.mm_processor_kwargs.new",
    f"{ENGINE}.vae_use_tilling",
]
# Settings that an override may have, with values of the right type and of others.
NAMES = sorted(
    name
    for name in {*layout("flow_grpo").groups, *names_of_algorithms(), *SETTINGS, *OF_REFERENCE, *UNKNOWN}
    if field_of(setting_here(name)) is None and name not in ("", "hydra") and not name.endswith("_target_")
)
WORDS = "null true False text no [0,1e-3] [0,1,2] {a:1} inf nan 1e-3 1.0 online -1 0 1 2.5 7 1e9"
VALUES = st.sampled_from(["", *WORDS.split()]) | st.integers(-(2**40), 2**40).map(str)
# Checks of one value; other messages are about several settings, which only the trainer knows in full.
CHECKS = re.compile(
    r"write (a number|true or false|two numbers)|must be a group of settings|is not supported; write |has no value|"
    r"unknown setting|must (be (positive|at most|from|a whole|a positive number of seconds|an integer)|not be negative)"
)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [[], NFT], ids=["flow_grpo", "diffusion_nft"])
@example(mark="", name=f"{ROLLOUT}.algo.clean_latents", value="")
@example(mark="", name=f"{ROLLOUT}.val_kwargs.algo.clean_latents", value="")  # not of evaluations
@example(mark="", name=f"{ROLLOUT}.val_kwargs.pipeline.aspect_ratio", value="null")  # of the reference, where null
@example(mark="", name=f"{ROLLOUT}.val_kwargs.pipeline.aspect_ratio", value="")
@example(mark="+", name=f"{ROLLOUT}.pipeline.pixel_dtype", value="{a:1}")
@example(mark="", name=f"{ACTOR}.kl_loss_coef", value="-1")  # not read by DiffusionNFT
@example(mark="", name=f"{ENGINE}.vae_use_tilling", value="null")
@example(mark="", name=f"{SAMPLED}.steps", value="4")
@example(mark="", name=f"{ROLLOUT}.val_kwargs.algo.sde_type", value="ode")
@given(mark=st.sampled_from(["", "+", "++"]), name=st.sampled_from(NAMES), value=VALUES)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_job_refuses_the_names_and_values_that_the_trainer_refuses(
    changes: list[str], mark: str, name: str, value: str
) -> None:
    line = f"{mark}{name}={value}"
    refused_later = refused_by_trainer(changes, line, [])
    refused_early = list(refused_in_job([line], changes).values())
    assert refused_later or not refused_early, f"{line}: {refused_early}"
    for problem in refused_later:
        if problem.startswith(f"{name}: ") and CHECKS.search(problem):
            assert refused_early, problem
            # A list or mapping is shown as each side reads it.
            assert problem == refused_early[0] or value.startswith(("{", "[")), (problem, refused_early)


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("{flow_shift:3, vae-use-tiling: true}", None),
        ("{}", None),
        ("{cache_config:{no_such:1}}", None),
        ("{ flow_shift: 3,no_such:1}", f"{ENGINE}.no_such: unknown setting"),
    ],
)
def test_names_in_a_group_of_settings_of_the_engine_are_checked(value: str, refused: str | None) -> None:
    assert refused_in_job(["data.shuffle=true", f"{ENGINE}={value}"]) == ({"overrides[1]": refused} if refused else {})


def test_an_override_may_not_set_by_another_name_what_a_field_sets() -> None:
    name = f"{FSDP}.dtype"
    assert describe_reserved(name) == f"{name} is reserved: spec.trainer.precision sets it"
    assert describe_reserved("actor_rollout_ref.model.pipeline.height")
    assert describe_reserved(f"{ACTOR}.optim.clip_grad") is None


@pytest.mark.parametrize(
    "lines",
    [
        ["data.shuffle=${trainer.val_before_train}"],
        [f"{ACTOR}.optim.betas=[0.9, 1e-3]", "data.shuffle=1"],
        [f"{ACTOR}.diffusion_loss.mix_beta=text"],  # of another algorithm, so it is not read
        [f"{SAMPLED}={{width: 64}}", f"{SAMPLED}.height=32", "ray_kwargs.ray_init.num_cpus=2"],
    ],
)
def test_what_the_trainer_takes_is_not_refused(lines: list[str]) -> None:
    assert refused_in_job(lines) == {}


# --- several overrides, and fields --------------------------------------------------------------------------


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
    refusals = refused_in_job(["data.shuffle=true", *lines])
    assert refusals == {"overrides[2]": f"{setting}: already set by overrides[1]; remove one of the two"}
    assert [refused_in_job([line]) for line in lines] == [{}, {}], "each alone is accepted"


# Changes to the example's fields, overrides, and part of the message that refuses the last override. The cases are the
# rules that involve fields, and one rule of each list that both sides read.
CASES = [
    (RANKS, [f"{FSDP}.ulysses_sequence_parallel_size=3"], "3 does not divide the 4 ranks of the trainer"),
    (RANKS, [f"{FSDP}.fsdp_size=0"], "0 does not divide the 4 ranks of the trainer"),
    ([], [f"{ACTOR}.optim.lr_warmup_steps=5", f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1"], "is not read with lr_war"),
    ([], [f"{ACTOR}.diffusion_loss.clip_ratio=0"], "must be positive: 0"),
    (["spec.algorithm.name=FlowDPPO"], [f"{CORRECTION}.bypass_mode=true"], "true does not go with flow_dppo: the eng"),
    (["spec.model.lora.enabled=false"], [f"{ENGINE}.quantization=fp8"], "train an adapter"),
    ([], ["trainer.resume_from_path=/runs/a/checkpoints/step_000020"], "is not read: "),
    (NFT, [f"{ROLLOUT}.algo.init_same_noise=true"], "all samples of a prompt would be the same"),
    (MIX, [f"{ROLLOUT}.algo.sde_contiguous=False"], "a progressive window is contiguous"),
    ([], [f"{ROLLOUT}.checkpoint_engine.backend=nccl"], "nccl is for spec.rollout.placement Separate"),
    ([], ["actor_rollout_ref.hybrid_engine=False"], "false is for spec.rollout.placement Separate"),
    (SEPARATE, [f"{ROLLOUT}.checkpoint_engine.backend=naive"], "is for engines on the trainer's accelerators"),
    (SEPARATE, [f"{ROLLOUT}.free_cache_engine=true"], "never sleeps"),
    (SEPARATE, [f"{V1}.sampler.max_off_policy_threshold=2"], "span 3 versions, more than 2"),
    ([*DPO, *SEPARATE], ["algorithm.sample_source=offline"], "nothing is generated"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "overrides", "said"), CASES, ids=[case[1][-1].partition("=")[0] for case in CASES])
def test_an_override_that_does_not_go_with_fields_is_refused_as_by_the_trainer(
    changes: list[str], overrides: list[str], said: str
) -> None:
    *before, override = overrides
    ((at, text),) = refused_in_job(overrides, changes).items()
    assert said in text and at == f"overrides[{len(before)}]"
    assert refused_by_trainer(changes, override, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        (RANKS, [f"{FSDP}.ulysses_sequence_parallel_size=2", f"{FSDP}.fsdp_size=2"]),
        (RANKS, [f"{FSDP}.fsdp_size=-1"]),
        (RANKS, [f"{FSDP}.fsdp_size=8"]),  # of more ranks than there are: all
        ([], ["trainer.resume_from_path=null", f"{ROLLOUT}.calculate_log_probs=false"]),
        ([], ["trainer.resume_from_path="]),
        ([*NFT, "spec.model.lora.enabled=false"], [f"{ACTOR}.diffusion_loss.ref_kl_coef=1e-4"]),
        (NFT, [f"{ROLLOUT}.calculate_log_probs=true"]),
        (NFT, [f"{ACTOR}.use_kl_loss=true"]),
        ([*MIX, "spec.rollout.sampler.window.placement=Random"], [f"{ROLLOUT}.algo.sde_contiguous=false"]),
        (SEPARATE, [f"{V1}.sampler.max_off_policy_strategy=drop", f"{V1}.sampler.max_off_policy_threshold=2"]),
        (SEPARATE, [f"{ROLLOUT}.checkpoint_engine.backend=omni_tcp", f"{ROLLOUT}.free_cache_engine=false"]),
        (DPO, ["algorithm.sample_source=offline"]),
        ([], [f"{ACTOR}.rollout_correction.bypass_mode=true"]),
    ],
)
def test_overrides_that_go_together_are_taken_by_both(changes: list[str], overrides: list[str]) -> None:
    assert refused_by_trainer(changes, overrides[-1], overrides[:-1]) == []
    load_job(EXAMPLE, job(changes, overrides))


def test_overrides_of_other_programs_are_not_checked() -> None:
    """A module of the user may register an algorithm that needs other values; an entry point has its own settings."""
    load_job(
        EXAMPLE, job(["spec.algorithm.name=Custom"], [f"{ACTOR}.use_kl_loss=true", f"{ROLLOUT}.rollout_adapter=old"])
    )
    load_job(EXAMPLE, job(['spec.algorithm.entrypoint=["my-trainer"]'], ["data.shuffle=maybe", "data.shuffle=true"]))
