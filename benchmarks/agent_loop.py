"""What the agent loop itself costs a sample: a worker with an engine and a reward worker that answer at once.

    python benchmarks/agent_loop.py [--repeats N] [--out FILE]

For each size, the processor's time of this process from a batch of prompts to the batch of samples, so that other work
on the machine counts little. The first batch of all is not counted: it makes what is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "examples" / "shapes-sd3"
SIZES = (1, 4, 16, 64, 256, 1024, 4096)


class Answers:
    """An engine, and the handle of a reward worker, whose answers are ready."""

    def __init__(self) -> None:
        import torch

        from verl_omni.workers.rollout.replica import DiffusionOutput

        self.compute_score = self
        self.output = DiffusionOutput(
            diffusion_output=torch.zeros(3, 64, 64, dtype=torch.uint8),
            log_probs=torch.zeros(9),
            stop_reason="completed",
            extra_fields={
                "all_latents": torch.zeros(10, 4, 8, 8), "all_timesteps": torch.zeros(9),
                "prompt_embeds": torch.zeros(24, 64), "pooled_prompt_embeds": torch.zeros(64), "global_steps": 0,
            },
        )  # fmt: skip

    async def generate(self, **_request: Any) -> Any:
        """A sample; each has fields of its own, as one that has travelled."""
        await asyncio.sleep(0)
        return self.output.model_copy(update={"extra_fields": dict(self.output.extra_fields)})

    async def remote(self, _data: Any) -> dict[str, Any]:
        """A score."""
        await asyncio.sleep(0)
        return {"reward_score": 1.0, "reward_extra_info": {"acc": 1.0}}


def worker(folder: Path) -> Any:
    """The worker of the example's model."""
    from verl_omni.agent_loop import DiffusionAgentLoopWorker
    from verl_omni.trainer import settings

    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "a red circle"}\n')
    config = settings.load(
        [
            f"data.train_files='{prompts}'", "data.max_prompt_length=24", "trainer.total_training_steps=1",
            f"actor_rollout_ref.model.path='{MODEL}'", "actor_rollout_ref.rollout.max_prompt_embed_length=24",
        ]
    )  # fmt: skip
    answers = Answers()
    return DiffusionAgentLoopWorker(config, answers, None, [answers])


def batch(size: int) -> Any:
    """Rows as a trainer makes them."""
    from verl_omni.trainer.rollout import training_prompts

    rows = [
        {
            "raw_prompt": [{"role": "user", "content": "two red squares"}],
            "data_source": "shapes", "reward_model": {"ground_truth": ""}, "extra_info": {"index": row},
        }
        for row in range(size)
    ]  # fmt: skip
    return training_prompts(rows, n=1, step=1, version=0, seed=0)


async def measure(made: Any, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of the processor a sample, for each size; batches of all sizes take turns."""
    found: dict[int, list[float]] = {size: [] for size in SIZES}
    await made.generate_sequences(batch(1))
    for _ in range(repeats):
        for size in SIZES:
            prompts = batch(size)
            began = time.process_time()
            await made.generate_sequences(prompts)
            found[size].append((time.process_time() - began) * 1e3 / size)
    return [{"samples": size, "ms_a_sample": statistics.median(each), "all": each} for size, each in found.items()]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "figures" / "agent_loop.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(measure(worker(Path(folder)), chosen.repeats))
    answer = {"machine": f"{os.cpu_count()} cores, {platform.machine()}, no accelerator", "runs": runs}
    chosen.out.write_text(json.dumps(answer, indent=2) + "\n")
    print("| samples | ms a sample | lowest to highest |\n| --- | --- | --- |")
    for run in runs:
        print(f"| {run['samples']} | {run['ms_a_sample']:.2f} | {min(run['all']):.2f} to {max(run['all']):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
