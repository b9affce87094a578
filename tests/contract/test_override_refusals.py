"""A job is refused for an override that the trainer refuses at its start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from omni_operator import plan
from omni_operator.api import JobError, load_job
from omni_operator.cli.main import app
from verl_omni.trainer.settings import configuration
from verl_omni.workers.actor.setting_checks import check_fsdp_size

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
V1 = "trainer.v1"
ENGINE = f"{ROLLOUT}.engine_kwargs.vllm_omni"
FSDP = f"{ACTOR}.fsdp_config"
OPTIM = f"{ACTOR}.optim"
NFT = ["spec.algorithm.name=DiffusionNFT", "spec.rollout.sampler.noiseLevel=0"]
SEPARATE = ["spec.rollout.placement=Separate", "spec.rollout.batchesAhead=2"]
MIX = ["spec.algorithm.name=MixGRPO", "spec.rollout.sampler={noiseLevel: 0.7, window: {size: 2, end: 4}}"]
DPO = ["spec.algorithm.name=DiffusionDPO", "spec.rollout.sampler.noiseLevel=0"]
RANKS = ["spec.trainer.accelerator.count=4", "spec.rollout.replicas=4"]
# Changes of the example, overrides, and the end of what is said of the last one: rules that speak of fields, and one of
# each list of rules that both sides read.
CASES = [
    (RANKS, [f"{FSDP}.ulysses_sequence_parallel_size=3"], "3 does not divide the 4 ranks of the trainer"),
    (RANKS, [f"{FSDP}.fsdp_size=3"], "3 does not divide the 4 ranks of the trainer"),
    (RANKS, [f"{FSDP}.fsdp_size=0"], "0 does not divide the 4 ranks of the trainer"),
    ([], [f"{OPTIM}.lr_warmup_steps=5", f"{OPTIM}.lr_warmup_steps_ratio=0.1"], "is not read with lr_warmup_steps=5"),
    ([], ["algorithm.timestep_fraction=0"], "must be above 0 and at most 1: 0"),
    ([], ["trainer.resume_from_path=/runs/a/checkpoints/step_000020"], "is not read: "),
    (NFT, ["algorithm.old_policy_update_interval=0.5"], "must be a whole number from 1: 0.5"),
    (NFT, [f"{ACTOR}.diffusion_loss.old_decay_max=1"], "must be at least 0 and less than 1: 1"),
    ([], [f"{ACTOR}.diffusion_loss.clip_ratio=0"], "must be positive: 0"),
    (NFT, [f"{ROLLOUT}.algo.init_same_noise=true"], "all samples of a prompt would be the same"),
    (["spec.model.lora.enabled=false"], [f"{ENGINE}.quantization=fp8"], "train an adapter"),
    (MIX, [f"{ROLLOUT}.algo.sde_contiguous=False"], "a progressive window is contiguous"),
    ([], [f"{ROLLOUT}.checkpoint_engine.backend=omni_tcp"], "is for spec.rollout.placement Separate"),
    ([], [f"{ROLLOUT}.checkpoint_engine.backend=nccl"], "nccl is for spec.rollout.placement Separate"),
    ([], ["actor_rollout_ref.hybrid_engine=False"], "false is for spec.rollout.placement Separate"),
    (SEPARATE, [f"{ROLLOUT}.checkpoint_engine.backend=naive"], "is for engines on the trainer's accelerators"),
    (SEPARATE, [f"{ROLLOUT}.free_cache_engine=true"], "never sleeps"),
    (SEPARATE, [f"{ROLLOUT}.enable_sleep_mode=true"], "never sleeps"),
    (SEPARATE, [f"{V1}.sampler.max_off_policy_threshold=2"], "span 3 versions, more than 2"),
    ([*DPO, *SEPARATE], ["algorithm.sample_source=offline"], "nothing is generated"),
    ([], [f"{ENGINE}.enable-cpu-offload=true"], "an engine's sleep does not free offloaded weights"),
    # By a name of the reference.
    ([], [f"{ACTOR}.rollout_correction.loss_type=reinforce"], "the loss is PPO's clipped one"),
]


def job(changes: list[str], overrides: list[str]) -> list[str]:
    """Assignments of the example with its changes and overrides."""
    return [*changes, f"spec.algorithm.overrides={json.dumps(overrides)}"]


def refused_by_trainer(changes: list[str], override: str, before: list[str]) -> list[str]:
    """The trainer's lines about a valid job and an override of it."""
    loaded = load_job(EXAMPLE, job(changes, before)).job
    overrides = plan.render_overrides(loaded, plan.local_layout(loaded, "/runs"))
    configuration.load(overrides)
    try:
        config = configuration.load([*overrides, override])
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        check_fsdp_size(ranks, config.actor_rollout_ref.actor.fsdp_config.fsdp_size)
    except ValueError as error:
        return str(error).splitlines()
    return []


def refused_in_job(changes: list[str], overrides: list[str]) -> str:
    """What is wrong with the job, which is its last override."""
    with pytest.raises(JobError) as caught:
        load_job(EXAMPLE, job(changes, overrides))
    (problem,) = caught.value.problems
    assert f"spec.algorithm.overrides[{len(overrides) - 1}]" in str(problem)
    return problem.text


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "overrides", "said"), CASES, ids=[case[1][-1].partition("=")[0] for case in CASES])
def test_an_override_that_does_not_go_with_fields_is_refused_as_by_the_trainer(
    changes: list[str], overrides: list[str], said: str
) -> None:
    *before, override = overrides
    assert said in refused_in_job(changes, overrides)
    assert refused_by_trainer(changes, override, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        (RANKS, [f"{FSDP}.ulysses_sequence_parallel_size=2", f"{FSDP}.fsdp_size=2"]),
        (RANKS, [f"{FSDP}.fsdp_size=-1"]),
        (RANKS, [f"{FSDP}.fsdp_size=8"]),  # of more ranks than there are: all
        ([], [f"{OPTIM}.lr_warmup_steps_ratio=0.1", "algorithm.timestep_fraction=1"]),
        ([], ["trainer.resume_from_path=null", f"{ROLLOUT}.calculate_log_probs=false"]),
        ([], ["trainer.max_velocity_difference=null"]),
        (NFT, [f"{ACTOR}.diffusion_loss.ref_kl_coef=1e-4", f"{ACTOR}.use_kl_loss=False"]),
        ([*NFT, "spec.model.lora.enabled=false"], [f"{ACTOR}.diffusion_loss.ref_kl_coef=1e-4"]),
        (NFT, [f"{ROLLOUT}.calculate_log_probs=true"]),
        (NFT, [f"{ACTOR}.use_kl_loss=true"]),
        (NFT, ["algorithm.old_policy_decay_schedule=copy", "algorithm.old_policy_update_interval=2"]),
        ([*MIX, "spec.rollout.sampler.window.placement=Random"], [f"{ROLLOUT}.algo.sde_contiguous=false"]),
        (["spec.rollout.sampler.window={size: 2, start: 0, end: 8}"], [f"{ACTOR}.use_kl_loss=true"]),
        (SEPARATE, [f"{V1}.sampler.max_off_policy_strategy=drop", f"{V1}.sampler.max_off_policy_threshold=2"]),
        (SEPARATE, [f"{ROLLOUT}.checkpoint_engine.backend=omni_tcp", f"{ROLLOUT}.free_cache_engine=false"]),
        (DPO, ["algorithm.sample_source=offline"]),
        ([], [f"{ACTOR}.rollout_correction.bypass_mode=true"]),
    ],
)
def test_overrides_that_go_together_are_taken_by_both(changes: list[str], overrides: list[str]) -> None:
    assert refused_by_trainer(changes, overrides[-1], overrides[:-1]) == []
    load_job(EXAMPLE, job(changes, overrides))


@pytest.mark.parametrize("options", [[], ["--cluster", "--image", "example.com/trainer:1"]])
def test_validate_refuses_flow_dppo_with_the_log_probabilities_of_the_engine(
    tmp_path: Path, options: list[str]
) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["algorithm"] = {"name": "FlowDPPO", "overrides": ["algorithm.rollout_correction.bypass_mode=true"]}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    found = CliRunner().invoke(app, ["validate", str(path), *options])
    assert found.exit_code == 2
    text = "true does not go with flow_dppo: the engine does not record the means of its steps; it needs false"
    assert f"spec.algorithm.overrides[0]: algorithm.rollout_correction.bypass_mode: {text}" in found.output


def test_a_module_of_the_user_may_register_an_algorithm_that_needs_other_values() -> None:
    load_job(
        EXAMPLE, job(["spec.algorithm.name=Custom"], [f"{ACTOR}.use_kl_loss=true", f"{ROLLOUT}.rollout_adapter=old"])
    )
