"""CPU time of the agent loop per sample, with an engine and a reward worker that answer immediately.

    python benchmarks/agent_loop.py [--repeats N] [--out FILE]

For each size, the CPU time of this process from a batch of prompts to the batch of samples, so that other work on the
machine matters little. Small batches follow one another until there are 64 samples; `first` is the first of them, which
runs with cold CPU caches. The first turn fills caches and is not counted.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import arguments, spread, table, write
from stack import MODEL, batch

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
SAMPLES = 64  # least number of samples in a turn of a size


class InstantEngine:
    """Engine client and reward-worker handle with prepared answers."""

    def __init__(self) -> None:
        import torch

        from verl_omni.workers.rollout.replica import DiffusionOutput

        self.compute_score = self
        self.output = DiffusionOutput(
            diffusion_output=torch.zeros(3, 64, 64, dtype=torch.uint8),
            log_probs=torch.zeros(9),
            stop_reason="completed",
            extra_fields={
                "all_latents": torch.zeros(10, 4, 8, 8),
                "all_timesteps": torch.zeros(9),
                "prompt_embeds": torch.zeros(24, 64),
                "pooled_prompt_embeds": torch.zeros(64),
                "global_steps": 0,
            },
        )

    async def generate(self, **_request: Any) -> Any:
        """A sample with its own `extra_fields`, like one that came through Ray."""
        await asyncio.sleep(0)
        return self.output.model_copy(update={"extra_fields": dict(self.output.extra_fields)})

    async def remote(self, _data: Any) -> dict[str, Any]:
        """A reward."""
        await asyncio.sleep(0)
        return {"reward_score": 1.0, "reward_extra_info": {"acc": 1.0}}


def worker(folder: Path) -> Any:
    """An agent-loop worker for the example model."""
    from verl_omni.agent_loop import DiffusionAgentLoopWorker
    from verl_omni.trainer.settings import configuration

    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "a red circle"}\n')
    config = configuration.load(
        [
            f"data.train_files='{prompts}'",
            "data.max_prompt_length=24",
            "trainer.total_training_steps=1",
            f"actor_rollout_ref.model.path='{MODEL}'",
            "actor_rollout_ref.rollout.max_prompt_embed_length=24",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "actor_rollout_ref.rollout.max_concurrent_requests=256",
        ]
    )
    engine = InstantEngine()
    return DiffusionAgentLoopWorker(config, engine, None, [engine])


async def measure_turn(made: Any, size: int) -> tuple[float, float]:
    """CPU milliseconds per sample: mean of a turn, and of its first batch."""
    batches = [batch(size) for _ in range(max(1, SAMPLES // size))]
    milliseconds = []
    for prompts in batches:
        began = time.process_time()
        await made.generate_sequences(prompts)
        milliseconds.append((time.process_time() - began) * 1e3 / size)
    return sum(milliseconds) / len(milliseconds), milliseconds[0]


async def measure(made: Any, repeats: int) -> list[dict[str, Any]]:
    """A row per size; the sizes take turns."""
    turns = [{size: await measure_turn(made, size) for size in SIZES} for _ in range(repeats + 1)][1:]
    return [
        {
            "samples": size,
            **spread("ms_a_sample", [turn[size][0] for turn in turns]),
            **spread("first_ms_a_sample", [turn[size][1] for turn in turns]),
        }
        for size in SIZES
    ]


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "agent_loop", repeats=5).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(worker(Path(folder)), chosen.repeats))
    write(chosen.out, rows)
    table(rows, ["samples", "ms_a_sample", "ms_a_sample_lowest", "ms_a_sample_highest", "first_ms_a_sample"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
