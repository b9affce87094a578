"""Estimates of `drl fit` for the public models that it has configurations of, on one device and on eight.

    python benchmarks/fit_models.py [--out FILE]

No model is downloaded, and no accelerator is used. The table in docs/reference/model-families.md is written from the
result.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import fit_page
import page_tables
from results import arguments, table, write

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
# A usual job: LoRA, guidance, 16 prompts of 8 samples, each sample trained for itself.
USUAL = (
    "data.train_files=none",
    "data.train_batch_size=16",
    "trainer.total_training_steps=1",
    f"{MODEL}.lora_rank=32",
    f"{ROLLOUT}.n=8",
    f"{ROLLOUT}.max_num_seqs=4",
    f"{ROLLOUT}.algo.sde_window_size=4",
    f"{ROLLOUT}.pipeline.guidance_scale=4.0",
    f"{ACTOR}.ppo_mini_batch_size=16",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
)
IMAGE = (f"{ROLLOUT}.pipeline.height=1024", f"{ROLLOUT}.pipeline.width=1024")
VIDEO = (
    f"{ROLLOUT}.pipeline.height=480",
    f"{ROLLOUT}.pipeline.width=832",
    f"{ROLLOUT}.pipeline.num_frames=81",
    f"{ROLLOUT}.pipeline.max_sequence_length=512",
    f"{ROLLOUT}.max_num_seqs=1",
)
DEVICES = (1, 8)


def estimates() -> list[dict[str, Any]]:
    """A row per model and number of devices."""
    from verl_omni.trainer.memory_estimate import __main__ as program
    from verl_omni.trainer.memory_estimate import public_models

    rows = []
    for model in public_models.MODELS:
        size = VIDEO if "Wan" in model else IMAGE
        for devices in DEVICES:
            overrides = [f"{MODEL}.path={model}", *USUAL, *size, f"trainer.n_gpus_per_node={devices}"]
            with tempfile.TemporaryDirectory() as folder:
                config = program.load_settings(overrides, Path(folder), accelerator=True)
                estimate = program.describe(config, None, accelerator=True)
            phases = {phase["name"]: phase["bytes"] for phase in estimate["device"]}
            rows.append(
                {
                    "model": model,
                    "devices": devices,
                    "parameters": estimate["parameters"],
                    "peak": estimate["peak"],
                    "generation": phases["generation"],
                    "update": phases["update"],
                    "host": max(phase["bytes"] for phase in estimate["host"]),
                    "sample": estimate["sample_bytes"],
                }
            )
            print(f"{model} on {devices}: {estimate['peak'] / 2**30:.1f} GiB", flush=True)
    return rows


def main() -> int:
    """Estimate, and write the data and the page."""
    options = arguments(__doc__, "fit_models", repeats=0).parse_args()
    rows = estimates()
    write(options.out, rows, settings=list(USUAL), image=list(IMAGE), video=list(VIDEO))
    table(rows, ["model", "devices", "generation", "update", "host"])
    page_tables.update(*fit_page.MODELS, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
