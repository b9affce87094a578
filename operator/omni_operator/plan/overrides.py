"""PURE: a job -> the trainer's settings, as Hydra overrides. The operator and `drl run` render the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_operator.api.job import DiffusionRLJob, JobSpec, located

# Settings that the specification decides; a second source would let the two disagree.
RESERVED = (
    "actor_rollout_ref.model.path", "actor_rollout_ref.rollout.name", "data.train_files", "data.val_files",
    "trainer.default_local_dir", "trainer.experiment_name", "trainer.total_training_steps", "trainer.n_gpus_per_node",
)  # fmt: skip


class ReservedOverride(ValueError):
    """`algorithm.overrides` sets something that the specification decides."""


def overrides(job: DiffusionRLJob, *, folder: Path, run: str) -> list[str]:
    """The trainer's arguments, in a fixed order; the user's own come last.

    Args:
        folder: where the job's file is; its relative paths start there.
        run: the run folder.

    Raises:
        ReservedOverride: an override of the user names a reserved setting.
    """
    for override in job.spec.algorithm.overrides:
        name = override.partition("=")[0].lstrip("+~")
        if name in RESERVED:
            raise ReservedOverride(f"spec.algorithm.overrides: {name} is decided by the specification, remove it")
    settings = {
        **_model(job.spec, folder),
        **_data(job.spec, folder),
        **_rollout(job.spec),
        **_reward(job.spec, folder),
        **_trainer(job, run),
    }
    return [f"{name}={quoted(value)}" for name, value in settings.items()] + list(job.spec.algorithm.overrides)


def quoted(value: Any) -> str:
    """A value in Hydra's grammar."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case Mapping():
            # Keys of Hydra's grammar are bare words.
            return "{" + ",".join(f"{key}:{quoted(each)}" for key, each in value.items()) + "}"
        case _:
            return "[" + ",".join(quoted(each) for each in value) + "]"


def _model(spec: JobSpec, folder: Path) -> dict[str, Any]:
    prefix = "actor_rollout_ref.model"
    made: dict[str, Any] = {f"{prefix}.path": located(spec.model.base, folder)}
    if spec.model.lora is None:
        return made | {f"{prefix}.lora_rank": 0}
    lora = spec.model.lora
    return made | {
        f"{prefix}.lora_rank": lora.rank,
        f"{prefix}.lora_alpha": lora.alpha,
        f"{prefix}.target_modules": lora.target_modules,
    }


def _data(spec: JobSpec, folder: Path) -> dict[str, Any]:
    return {
        "data.train_files": located(spec.data.train, folder),
        "data.val_files": located(spec.data.validation, folder) if spec.data.validation else None,
        "data.train_batch_size": spec.trainer.prompts_per_step,
        "data.max_prompt_length": spec.data.prompt_length,
        "data.seed": spec.trainer.seed,
    }


def _rollout(spec: JobSpec) -> dict[str, Any]:
    prefix = "actor_rollout_ref.rollout"
    image, sampler = spec.rollout.image, spec.rollout.sampler
    window = sampler.window
    return {
        f"{prefix}.name": "vllm_omni",
        f"{prefix}.n": spec.rollout.samples_per_prompt,
        f"{prefix}.max_num_seqs": spec.rollout.max_batch,
        f"{prefix}.agent.num_workers": spec.rollout.agent_loop.workers,
        f"{prefix}.pipeline.height": image.height,
        f"{prefix}.pipeline.width": image.width,
        f"{prefix}.pipeline.num_inference_steps": image.steps,
        f"{prefix}.pipeline.guidance_scale": image.guidance_scale,
        f"{prefix}.pipeline.max_sequence_length": image.max_sequence_length,
        f"{prefix}.algo.sde_type": sampler.type,
        f"{prefix}.algo.noise_level": sampler.noise_level,
        f"{prefix}.algo.sde_window_size": window.size if window else None,
        f"{prefix}.algo.sde_window_range": window.range if window else None,
    }


def _reward(spec: JobSpec, folder: Path) -> dict[str, Any]:
    reward = spec.reward
    made: dict[str, Any] = {"reward.num_workers": reward.workers}
    if reward.scorer is not None:
        return made | {"reward.scorer": reward.scorer, "reward.scorer_kwargs": reward.settings}
    if reward.path is not None:
        return made | {
            "reward.custom_reward_function.path": located(reward.path, folder),
            "reward.custom_reward_function.name": reward.name,
        }
    made["reward.reward_manager.name"] = "MultiVisualRewardManager"
    for key, function in (reward.functions or {}).items():
        source = (
            {"name": function.scorer}
            if function.scorer is not None
            else {"path": located(str(function.path), folder), "name": function.name}
        )
        made[f"reward.reward_functions.{key}"] = {
            **source, "weight": function.weight, "required": function.required, **function.settings
        }  # fmt: skip
    return made


def _trainer(job: DiffusionRLJob, run: str) -> dict[str, Any]:
    spec = job.spec
    actor = "actor_rollout_ref.actor"
    return {
        f"{actor}.optim.lr": spec.trainer.learning_rate,
        f"{actor}.ppo_mini_batch_size": spec.trainer.prompts_per_step,
        f"{actor}.ppo_micro_batch_size_per_gpu": spec.trainer.micro_batch,
        "algorithm.adv_estimator": "flow_grpo",
        "trainer.experiment_name": job.metadata.name,
        "trainer.default_local_dir": run,
        "trainer.total_training_steps": spec.trainer.steps,
        "trainer.n_gpus_per_node": spec.rollout.replicas,
        "trainer.nnodes": 1,
        "trainer.seed": spec.trainer.seed,
        "trainer.save_freq": spec.checkpoint.every_steps,
        "trainer.test_freq": spec.trainer.evaluate_every_steps,
        "trainer.max_actor_ckpt_to_keep": spec.checkpoint.keep,
        "trainer.resume_mode": "auto" if spec.checkpoint.resume == "Auto" else "disable",
    }
