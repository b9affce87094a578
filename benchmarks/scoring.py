"""Seconds to score a batch with a scorer that sleeps, on 1, 4 and 16 reward workers.

    python benchmarks/scoring.py [--repeats N] [--out FILE]

The agent loop generates with an engine that answers at once, and the reward managers run in its process, so the time is
spent on queueing and scoring. The deadline of a score is far below the time that most samples wait.
"""

import asyncio
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# The reward manager loads this file for its scorer, without the other modules of this folder on its path, so they are
# imported where they are used.
HERE = Path(__file__).resolve()
MODEL = HERE.parents[1] / "examples" / "shapes-sd3"
SAMPLES = 512
WORKERS = (1, 4, 16)
SCORER_S = 3.0
DEADLINE_S = 9.0


def slow_score(data_source: str, solution_image: Any, ground_truth: Any, extra_info: Any) -> float:
    """Sleep."""
    time.sleep(SCORER_S)
    return 0.0


class Engine:
    """Answers each request at once with a small black image."""

    async def generate(self, request_id: str, **request: Any) -> Any:
        """One sample."""
        import torch

        from verl_omni.workers.rollout.replica import DiffusionOutput

        return DiffusionOutput(diffusion_output=torch.zeros(3, 8, 8, dtype=torch.uint8), stop_reason="completed")


class RewardWorker:
    """Handle of a reward manager in this process."""

    def __init__(self, config: Any) -> None:
        from verl_omni.reward_loop.reward_manager import VisualRewardManager

        self.manager = VisualRewardManager(config=config, tokenizer=None, compute_score=None)
        self.compute_score = self.__ray_ready__ = self

    async def remote(self, data: Any = None) -> Any:
        """The score of a sample; without one, that the worker is alive."""
        return True if data is None else await self.manager.run_single(data)


def settings(folder: Path) -> Any:
    """Settings of the agent loop and the rewards."""
    from verl_omni.trainer.settings import configuration

    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "a red circle"}\n', encoding="utf-8")
    return configuration.load(
        [
            f"data.train_files='{prompts}'",
            f"actor_rollout_ref.model.path='{MODEL}'",
            "trainer.total_training_steps=1",
            "reward.scorer=python",
            f"reward.scorer_kwargs.function='{HERE}:slow_score'",
            f"reward.deadline_seconds={DEADLINE_S}",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "actor_rollout_ref.rollout.max_concurrent_requests=256",
        ]
    )


async def seconds_of(config: Any, workers: int) -> float:
    """Seconds to generate and score a batch; raises if a sample fails."""
    from stack import batch

    from verl_omni.agent_loop import DiffusionAgentLoopWorker

    loop = DiffusionAgentLoopWorker(config, Engine(), None, [RewardWorker(config) for _ in range(workers)])
    await loop.generate_sequences(batch(1))  # the first one reads settings
    prompts = batch(SAMPLES)
    began = time.perf_counter()
    samples = await loop.generate_sequences(prompts)
    seconds = time.perf_counter() - began
    if samples.batch["rm_scores"].shape != (SAMPLES, 1):
        raise RuntimeError("samples have no score")
    return seconds


def measure(repeats: int) -> list[dict[str, Any]]:
    """A row per number of workers. A sample that failed would have ended the program."""
    from results import spread

    from verl_omni.reward_loop.scoring_queue import THREADS

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder))
        for workers in WORKERS:
            ideal = math.ceil(SAMPLES / (workers * THREADS)) * SCORER_S
            turns = [asyncio.run(seconds_of(config, workers)) for _ in range(repeats)]
            rows.append(
                {
                    "workers": workers,
                    "failed": 0,
                    "ideal_s": ideal,
                    **spread("seconds", turns),
                    **spread("over_ideal", [turn / ideal for turn in turns]),
                }
            )
    return rows


def main() -> int:
    """Measure, write and print."""
    from results import arguments, table, write

    chosen = arguments(__doc__, "scoring", repeats=1).parse_args()
    from verl_omni.reward_loop.scoring_queue import THREADS

    rows = measure(chosen.repeats)
    write(chosen.out, rows, samples=SAMPLES, scorer_s=SCORER_S, deadline_s=DEADLINE_S, calls=THREADS)
    table(rows, ["workers", "ideal_s", "seconds", "over_ideal", "failed"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
