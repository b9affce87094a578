"""Runs of the loop on replicas and ranks in memory, also with batches that are generated ahead."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from verl import DataProto

from tests.ml import smallest_job
from verl_omni.samples import GENERATED, Sample
from verl_omni.trainer.loop import TrainingLoop
from verl_omni.trainer.main_diffusion import build_loop
from verl_omni.trainer.run.run_folder import RunFolder
from verl_omni.trainer.run.step_checkpoints import RunRequests
from verl_omni.trainer.settings import process_counts
from verl_omni.utils.columns import objects

ASYNC = ("trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=1")
AHEAD = "trainer.v1.separate_async.num_warmup_batches"
THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"
STRATEGY = "trainer.v1.sampler.max_off_policy_strategy"


@dataclass
class RunInMemory:
    """A run whose engines and ranks are stand-ins."""

    config: Any
    stack: Any
    folder: RunFolder
    requests: RunRequests
    rows: Any
    loop: TrainingLoop

    def fit(self, checkpoint: Path | None) -> None:
        """Train; see `TrainingLoop.fit`."""
        self.loop.fit(checkpoint)


def job_in_memory(*overrides: str) -> Any:
    """A job of Stable Diffusion 3 in float32, whose latents stand-ins record: two prompts a step, with two samples."""
    config = smallest_job.load(
        "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
        *smallest_job.FLOAT32,
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        *overrides,
    )
    process_counts.fill_in(config, cpus=2)
    return config


def prompt_rows(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Rows of a data set with these prompts, which are their ground truths."""
    return [
        {
            "raw_prompt": [{"role": "user", "content": text}],
            "data_source": "brightness",
            "reward_model": {"ground_truth": text},
            "extra_info": {"prompt": text},
        }
        for text in texts
    ]


def run_in_memory(config: Any, stack: Any, folder: Path, rows: Any, held_out: Any | None, **parts: Any) -> RunInMemory:
    """A run on a stack of stand-ins that gets no request to stop."""
    run_folder = RunFolder(folder)
    requests = RunRequests(lambda: False)
    loop = build_loop(config, stack, run_folder, rows, held_out, requests, **parts)
    return RunInMemory(config, stack, run_folder, requests, rows, loop)


class Trained:
    """Replicas and ranks of the loop: remembers which prompts each update got, and its tolerances."""

    def __init__(self) -> None:
        self.served = 0
        self.updates: list[tuple[str, ...]] = []
        self.tolerances: list[tuple[float, float]] = []

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        rows = len(prompts)
        tensors = {"rm_scores": torch.arange(rows).float()[:, None], "rollout_log_probs": torch.zeros(rows, 1)}
        columns = {**prompts.non_tensor_batch, GENERATED: objects([Sample(version=self.served)] * rows)}
        places = torch.tensor([int(info["prompt"]) for info in prompts.non_tensor_batch["extra_info"]])
        return DataProto(
            batch=TensorDict({**tensors, "all_timesteps": places[:, None]}, batch_size=rows), non_tensor_batch=columns
        )

    def update_actor(self, data: DataProto) -> DataProto:
        self.updates.append(tuple(data.batch["all_timesteps"].flatten().tolist()))
        self.tolerances.append(tuple(data.meta_info["request"][f"{name}tolerance"] for name in ("", "velocity_")))
        return DataProto(meta_info={"metrics": {"actor/optimizer_steps": [1.0]}})

    def update_weights(self, global_steps: int) -> dict[str, list[str]]:
        self.served = global_steps
        return {}

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "weights").write_text("w")

    def load_checkpoint(self, folder: str) -> None:
        assert (Path(folder) / "weights").is_file()


def stack_of(actors: Any) -> SimpleNamespace:
    """A stack whose agent loop and workers are one stand-in, which also says what version it serves."""
    return SimpleNamespace(
        agent_loop=actors,
        workers=actors,
        pool=None,
        judges=None,
        versions=lambda: [actors.served],
        weights=SimpleNamespace(update_weights=actors.update_weights, sleep_replicas=lambda: None),
        before_ray_ends=[],
    )


def trainer(folder: Path, stack: Any, steps: int, *overrides: str) -> RunInMemory:
    config = job_in_memory(
        f"trainer.total_training_steps={steps}",
        "trainer.save_freq=1",
        "actor_rollout_ref.actor.checkpoint.async_save=false",
        "data.val_files=null",
        *ASYNC,
        *overrides,
    )
    return run_in_memory(config, stack_of(stack), folder, prompt_rows(map(str, range(7))), None)
