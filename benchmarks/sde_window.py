"""Learning of the main example with an SDE window shared by the samples of a prompt, and with one for each sample.

    python benchmarks/sde_window.py [--variants prompt sample] [--seeds 0 1 2] [--steps 30] [--add] [--out FILE]

The job is `examples/colors-grpo.yaml` with a random window of two of the first five of its nine denoising steps, the
trainer's default range. Runs of a seed have the same prompts and initial noise. The data of the runs so far are written
after each run. `--add` keeps the runs that are in the file.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from example_job import HERE, JOB, gain, measure, overrides
from results import FIGURES, write

LOOP = "window_of_sample"
WINDOW = {"size": 2, "start": 0, "end": 5}
SETTINGS = {
    "prompt": (),
    "sample": (
        f"actor_rollout_ref.model.external_lib={LOOP}",
        f"actor_rollout_ref.rollout.agent.default_agent_loop={LOOP}",
    ),
}


def changes(variant: str) -> list[str]:
    """Assignments of `drl run --set` that make a variant of the example."""
    return [
        f"spec.rollout.sampler.window={json.dumps(WINDOW)}",
        "spec.trainer.evalEverySteps=15",
        overrides(JOB, SETTINGS[variant]),
    ]


def main() -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--out", type=Path, default=FIGURES / "sde_window.json")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    # Where the processes of a run find the agent loop.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    runs = json.loads(chosen.out.read_text(encoding="utf-8"))["runs"] if chosen.add else []
    for seed in chosen.seeds:
        for variant in chosen.variants:
            run = measure(
                JOB,
                seed,
                chosen.steps,
                chosen.runs,
                control=False,
                variant=f"window-{variant}",
                changes=changes(variant),
            )
            runs.append({"variant": variant, **{name: run[name] for name in ("seed", "steps", "held_out")}})
            write(chosen.out, runs, window=WINDOW)
            rise, error = gain(run, "reward")
            print(f"seed {seed}, {variant}: {rise:+.3f} ± {error:.3f}, {run['seconds']:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
