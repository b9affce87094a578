"""What the agent loop itself costs a sample: a worker with an engine and a reward worker that answer at once.

    python benchmarks/agent_loop.py [--repeats N] [--out FILE]

For each size, the processor's time of this process from a batch of prompts to the batch of samples, so that other work
on the machine counts little. Small batches come one after another until they are 64 samples, as a larger batch's rows
do; `first` is the first of them, which finds the processor's caches full of what ran before it. The first turn is not
counted: it makes what is kept.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import arguments, spread, table, write
from stack import MODEL, batch

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
SAMPLES = 64  # at least so many in a turn of each size


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


async def taken(made: Any, size: int) -> tuple[float, float]:
    """Milliseconds of the processor a sample: over a turn, and of the turn's first batch."""
    batches = [batch(size) for _ in range(max(1, SAMPLES // size))]
    found = []
    for prompts in batches:
        began = time.process_time()
        await made.generate_sequences(prompts)
        found.append((time.process_time() - began) * 1e3 / size)
    return sum(found) / len(found), found[0]


async def measure(made: Any, repeats: int) -> list[dict[str, Any]]:
    """A row for each size; the sizes take turns."""
    turns = [{size: await taken(made, size) for size in SIZES} for _ in range(repeats + 1)][1:]
    return [
        {
            "samples": size,
            **spread("ms_a_sample", [turn[size][0] for turn in turns]),
            **spread("first_ms_a_sample", [turn[size][1] for turn in turns]),
        }
        for size in SIZES
    ]


def main() -> int:
    """Measure and print."""
    chosen = arguments(__doc__, "agent_loop", repeats=5).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(worker(Path(folder)), chosen.repeats))
    write(chosen.out, rows)
    table(rows, ["samples", "ms_a_sample", "ms_a_sample_lowest", "ms_a_sample_highest", "first_ms_a_sample"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
