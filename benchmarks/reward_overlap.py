"""Reward computation during generation, compared with all rewards after all images.

    python benchmarks/reward_overlap.py [--repeats N] [--out FILE]

The scorer takes one image at a time and sleeps, so it uses no CPU, for r = 0.5, 1 and 2 times the seconds g that an
image takes; g is measured first. Overlapped: the agent loop with its reward worker. In sequence: an agent loop without
rewards, then the same reward worker with all images. They take turns; the first turn of each r is not counted.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

# The reward worker loads this file for its scorer, without the other modules of this folder on its path, so they are
# imported where they are used.
HERE = Path(__file__).resolve()
PICTURES = 96
BATCH_SIZE = 4
# enough work per image to make the cost of a call negligible
STEPS = 10
PIXELS = 128
TIMES = (0.5, 1.0, 2.0)
ONE_AT_A_TIME = threading.Lock()


def slow_score(data_source: str, solution_image: Any, ground_truth: float, extra_info: Any) -> float:
    """Sleep for `ground_truth` seconds, one image at a time."""
    with ONE_AT_A_TIME:
        time.sleep(ground_truth)
    return 0.0


def exact_ideal(drawing: float, scoring: float, batches: int) -> float:
    """Lower bound of the overlapped over the sequential time, for images that come in batches.

    Nothing can be scored during the first batch, and nothing is generated while the last batch is scored. With D and S
    seconds for the images and rewards of a batch, and m batches: (D + (m - 1) max(D, S) + S) / (m (D + S)).

    Args:
        drawing, scoring: seconds of all images, and of all rewards.
    """
    drawing_batch = drawing / batches
    scoring_batch = scoring / batches
    return (drawing_batch + (batches - 1) * max(drawing_batch, scoring_batch) + scoring_batch) / (drawing + scoring)


def sequence(unscored: Any, scorer: Any, seconds: float) -> tuple[float, float]:
    """Seconds to generate all images, and then to score them all."""
    import ray
    from stack import batch

    began = time.perf_counter()
    samples = unscored.generate_sequences(batch(PICTURES, seconds))
    between = time.perf_counter()
    ray.get(scorer.compute_score_batch.remote(samples.select(batch_keys=["prompts", "responses"])))
    return between - began, time.perf_counter() - between


def measure(on: Any, repeats: int) -> list[dict[str, Any]]:
    """A row per r."""
    from results import spread
    from stack import batch

    unscored = on.unscored()
    loop = on.stack.agent_loop
    (scorer,) = loop.reward_loop_worker_handles
    sequence(unscored, scorer, 0.0)
    g = min(sequence(unscored, scorer, 0.0)[0] for _ in range(2)) / PICTURES
    rows = []
    for times in TIMES:
        turns = []
        for _ in range(repeats + 1):
            drawing, scoring = sequence(unscored, scorer, times * g)
            began = time.perf_counter()
            loop.generate_sequences(batch(PICTURES, times * g))
            turns.append((drawing, scoring, time.perf_counter() - began))
        counted = turns[1:]
        rows.append(
            {
                "reward_over_generation": times,
                **spread("share", [both / (d + s) for d, s, both in counted]),
                **spread("ideal", [max(d, s) / (d + s) for d, s, _ in counted]),
                **spread("exact_ideal", [exact_ideal(d, s, PICTURES // BATCH_SIZE) for d, s, _ in counted]),
                **spread("over_ideal", [both / max(d, s) for d, s, both in counted]),
                "seconds": [dict(zip(("drawing", "scoring", "overlapped"), turn, strict=True)) for turn in counted],
            }
        )
    return rows


def main() -> int:
    """Measure, write and print."""
    from results import arguments, table, write
    from stack import running

    chosen = arguments(__doc__, "reward_overlap", repeats=5).parse_args()
    overrides = (
        "reward.scorer=python",
        f"reward.scorer_kwargs.function='{HERE}:slow_score'",
        f"actor_rollout_ref.rollout.max_num_seqs={BATCH_SIZE}",
        f"actor_rollout_ref.rollout.pipeline.num_inference_steps={STEPS}",
        f"actor_rollout_ref.rollout.pipeline.height={PIXELS}",
        f"actor_rollout_ref.rollout.pipeline.width={PIXELS}",
    )
    with running(*overrides) as on:
        rows = measure(on, chosen.repeats)
    write(chosen.out, rows, pictures=PICTURES, max_num_seqs=BATCH_SIZE, steps=STEPS, pixels=PIXELS)
    table(rows, ["reward_over_generation", "share", "ideal", "exact_ideal", "over_ideal", "over_ideal_highest"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
