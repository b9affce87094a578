"""Seconds of a step of the asynchronous training loop against the synchronous one, with parts that sleep.

python benchmarks/generation_ahead.py [--repeats N] [--out FILE]

Generation and update of a step last as long as is given, in all pairs; everything else is the training loop itself.
Each turn runs both loops. The first turn is not counted.
"""

import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results import arguments, spread, table, write

STEPS = 12  # the first of an asynchronous run has nothing to overlap with
SECONDS = ((0.3, 0.3), (0.3, 0.1), (0.1, 0.3))  # of generation and of the update
ASYNC = ("trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=1")


class Sleeping:
    """Replicas that generate, and ranks that update, in a given time."""

    def __init__(self, generation_s: float, update_s: float) -> None:
        self.generation_s = generation_s
        self.update_s = update_s
        self.version = 0

    def generate_sequences(self, prompts: Any) -> Any:
        import torch
        from tensordict import TensorDict
        from verl import DataProto

        from verl_omni.samples import GENERATED, Sample
        from verl_omni.utils.columns import objects

        time.sleep(self.generation_s)
        rows = len(prompts)
        tensors = {"rm_scores": torch.arange(rows).float()[:, None], "rollout_log_probs": torch.zeros(rows, 1)}
        columns = {**prompts.non_tensor_batch, GENERATED: objects([Sample(version=self.version)] * rows)}
        return DataProto(batch=TensorDict(tensors, batch_size=rows), non_tensor_batch=columns)

    def update_actor(self, data: Any) -> Any:
        from verl import DataProto

        time.sleep(self.update_s)
        return DataProto(meta_info={"metrics": {"actor/optimizer_steps": [1.0]}})

    def update_weights(self, global_steps: int) -> dict[str, list[str]]:
        self.version = global_steps
        return {}

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "weights").write_text("w")


def seconds_per_step(generation_s: float, update_s: float, *overrides: str) -> float:
    """Mean of the steps of one run, without its start and its checkpoint."""
    from verl_omni.trainer.main_diffusion import build_loop
    from verl_omni.trainer.run.run_folder import RunFolder
    from verl_omni.trainer.run.step_checkpoints import RunRequests
    from verl_omni.trainer.settings import configuration, process_counts

    config = configuration.load(
        [
            "data.train_files=t",
            "actor_rollout_ref.model.path=m",
            f"trainer.total_training_steps={STEPS}",
            "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
            "data.train_batch_size=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.rollout.n=2",
            "trainer.save_freq=0",
            "actor_rollout_ref.actor.checkpoint.async_save=false",
            "data.val_files=null",
            "actor_rollout_ref.rollout.dtype=float32",
            "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=float32",
            *overrides,
        ]
    )
    process_counts.fill_in(config, cpus=2)
    row = {
        "raw_prompt": [{"role": "user", "content": "p"}],
        "data_source": "d",
        "reward_model": {"ground_truth": ""},
        "extra_info": {"prompt": "p"},
    }
    parts = Sleeping(generation_s, update_s)
    stack: Any = SimpleNamespace(
        agent_loop=parts,
        workers=parts,
        versions=lambda: [parts.version],
        pool=None,
        judges=None,
        weights=SimpleNamespace(update_weights=parts.update_weights, sleep_replicas=lambda: None),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        build_loop(config, stack, run, [row] * 4, None, RunRequests(lambda: False)).fit(None)
        return sum(float(line["timing_s/step"] or 0.0) for line in run.metrics()) / STEPS


def ideal(generation_s: float, update_s: float) -> float:
    """Shortest time of the asynchronous loop relative to the synchronous one: its first batch overlaps nothing."""
    longer = max(generation_s, update_s)
    # Before the first update only its own batch, then the longer of both; after the last batch, only the update.
    return (generation_s + longer * (STEPS - 1) + update_s) / (STEPS * (generation_s + update_s))


def measure(repeats: int) -> list[dict[str, Any]]:
    """A row per pair of durations."""
    rows = []
    for generation_s, update_s in SECONDS:
        ratios = [
            seconds_per_step(generation_s, update_s, *ASYNC) / seconds_per_step(generation_s, update_s)
            for _ in range(repeats + 1)
        ]
        rows.append(
            {
                "generation_s": generation_s,
                "update_s": update_s,
                "ideal": ideal(generation_s, update_s),
                **spread("ratio", ratios[1:]),
            }
        )
    return rows


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "generation_ahead", repeats=3).parse_args()
    rows = measure(chosen.repeats)
    write(chosen.out, rows, steps=STEPS)
    table(rows, ["generation_s", "update_s", "ideal", "ratio"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
