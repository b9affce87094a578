"""Jobs with tiny models and small images, and their estimates."""

import functools
from pathlib import Path
from typing import Any

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.trainer.memory_estimate import job_estimate

ACTOR = "actor_rollout_ref.actor"
PIPELINE = "actor_rollout_ref.rollout.pipeline"
SMALL = (
    "actor_rollout_ref.model.lora_rank=4",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_mini_batch_size=4",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
    f"{PIPELINE}.height=64",
    f"{PIPELINE}.width=64",
    f"{PIPELINE}.num_inference_steps=3",
    f"{PIPELINE}.max_sequence_length=16",
)


def job(folder: Path, *overrides: str, accelerator: bool = True) -> Any:
    """Settings of a job with the model of a folder, on a machine with or without accelerators."""
    config = smallest_job.load(f"actor_rollout_ref.model.path={folder}", *SMALL, *overrides)
    startup.fit_to_machine(config, accelerator)
    return config


@functools.cache
def estimated(folder: Path, *overrides: str, accelerator: bool = True) -> job_estimate.JobEstimate:
    """The estimate of `job`; made once."""
    return job_estimate.JobEstimator(accelerator=accelerator).estimate(job(folder, *overrides, accelerator=accelerator))
