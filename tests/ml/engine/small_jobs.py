"""Jobs with a tiny model, small samples and batches, on the CPU; all else is the job's."""

from pathlib import Path
from typing import Any

from omni_operator import plan
from omni_operator.api import load_job

FRAMES = "actor_rollout_ref.rollout.pipeline.num_frames"
HELD_OUT = 2
SMALLER: dict[str, Any] = {
    "trainer.replicas": 1,
    "trainer.accelerator": {"vendor": "CPU"},
    "trainer.batch.prompts": 2,
    "rollout.replicas": 1,
    "rollout.samplesPerPrompt": 4,
    "rollout.pipeline.height": 64,
    "rollout.pipeline.width": 64,
}
FEWER_IF_GIVEN = {"trainer.batch.miniBatchPrompts": 1, "trainer.batch.microBatchSamples": 4}


def shrink(spec: dict[str, Any], model: Path, **more: Any) -> None:
    """Change the spec of a job.

    Args:
        model: its tiny model.
        more: further values, by the path of their field with `__` for dots.
    """
    fewer = {
        path: value for path, value in FEWER_IF_GIVEN.items() if path.rpartition(".")[2] in spec["trainer"]["batch"]
    }
    spec["model"] = {"base": str(model), "lora": spec["model"]["lora"]}  # without what is for repositories of the hub
    spec["rollout"].get("engine", {}).pop("tensorParallelSize", None)  # one process has one accelerator
    for path, value in {**SMALLER, **fewer, **more}.items():
        *groups, last = path.replace("__", ".").split(".")
        node = spec
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    overrides = [f"{FRAMES}=5" if line.startswith(f"{FRAMES}=") else line for line in spec["algorithm"]["overrides"]]
    spec["algorithm"]["overrides"] = [*overrides, f"data.val_max_samples={HELD_OUT}"]


def overrides_of(path: Path, folder: Path, runs: Path) -> list[str]:
    """What `drl run` gives the trainer for a job whose paths start at a folder."""
    job = plan.resolve_paths(load_job(path).job, str(folder))
    return plan.render_overrides(job, plan.local_layout(job, str(runs)))
