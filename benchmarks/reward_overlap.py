"""Scores while other pictures are still drawn, against all scores after all pictures.

    python benchmarks/reward_overlap.py [--repeats N] [--out FILE]

One scorer that takes one picture at a time and sleeps, so that it needs no processor: r = 0.5, 1 and 2 times the
seconds g that a picture takes, which are measured first. Overlapped is the agent loop with its reward worker;
sequence is an agent loop without one, and then the same worker with all the pictures. They take turns; the first turn
of each r is not counted.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

# The reward worker executes this file for its scorer, away from its neighbours: they are imported where they are used.
HERE = Path(__file__).resolve()
PICTURES = 96
AT_ONCE = 4  # pictures in one batch of the engine
STEPS, PIXELS = 10, 128  # as by default, and on a side: what a call costs is little beside a picture
TIMES = (0.5, 1.0, 2.0)
ONE_AT_A_TIME = threading.Lock()


def slow_score(data_source: str, solution_image: Any, ground_truth: float, extra_info: Any) -> float:
    """Sleep for `ground_truth` seconds, one picture after the other."""
    with ONE_AT_A_TIME:
        time.sleep(ground_truth)
    return 0.0


def exact_ideal(drawing: float, scoring: float, batches: int) -> float:
    """Share of the sequence's seconds that a perfect overlap needs, where pictures come in batches.

    Nothing can be scored while the first batch is drawn, and nothing is drawn while the last one is scored. With
    D and S seconds for a batch's pictures and scores, and m batches: (D + (m - 1) max(D, S) + S) / (m (D + S)).

    Args:
        drawing, scoring: seconds of all pictures, and of all scores.
    """
    one, other = drawing / batches, scoring / batches
    return (one + (batches - 1) * max(one, other) + other) / (drawing + scoring)


def sequence(unscored: Any, scorer: Any, seconds: float) -> tuple[float, float]:
    """Seconds of drawing all pictures, and then of scoring them all."""
    import ray
    from stack import batch

    began = time.perf_counter()
    made = unscored.generate_sequences(batch(PICTURES, seconds))
    between = time.perf_counter()
    ray.get(scorer.compute_score_batch.remote(made.select(batch_keys=["prompts", "responses"])))
    return between - began, time.perf_counter() - between


def measure(on: Any, repeats: int) -> list[dict[str, Any]]:
    """A row for each r."""
    from results import spread
    from stack import batch

    unscored, loop = on.unscored(), on.stack.agent_loop
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
                **spread("exact_ideal", [exact_ideal(d, s, PICTURES // AT_ONCE) for d, s, _ in counted]),
                **spread("over_ideal", [both / max(d, s) for d, s, both in counted]),
                "seconds": [dict(zip(("drawing", "scoring", "overlapped"), turn, strict=True)) for turn in counted],
            }
        )
    return rows


def main() -> int:
    """Measure and print."""
    from results import arguments, table, write
    from stack import running

    chosen = arguments(__doc__, "reward_overlap", repeats=5).parse_args()
    overrides = (
        "reward.scorer=python", f"reward.scorer_kwargs.function='{HERE}:slow_score'",
        f"actor_rollout_ref.rollout.max_num_seqs={AT_ONCE}",
        f"actor_rollout_ref.rollout.pipeline.num_inference_steps={STEPS}",
        f"actor_rollout_ref.rollout.pipeline.height={PIXELS}", f"actor_rollout_ref.rollout.pipeline.width={PIXELS}",
    )  # fmt: skip
    with running(*overrides) as on:
        rows = measure(on, chosen.repeats)
    write(chosen.out, rows, pictures=PICTURES, max_num_seqs=AT_ONCE, steps=STEPS, pixels=PIXELS)
    table(rows, ["reward_over_generation", "share", "ideal", "exact_ideal", "over_ideal", "over_ideal_highest"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
