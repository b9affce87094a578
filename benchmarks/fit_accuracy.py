"""Estimates of `drl fit` against measured peaks, on small models of each family and each training algorithm.

    python benchmarks/fit_accuracy.py [--gpu] [--out FILE]

The peak of an update of the real actor is counted by torch's CPU allocator, including what operators allocate inside
(`verl_omni/trainer/device_checks/measured_update.py`). With `--gpu`, layers have the width of public models and images
512 x 512 pixels, and CUDA's allocator counts. The tables in docs/guides/fit.md are written from the results.
"""

import sys
from typing import Any

import fit_page
import page_tables
from results import arguments, results_file, table, write

from verl_omni.pipelines.registry import FOLDERS, family_sizes
from verl_omni.trainer.device_checks.measured_update import compare

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LORA = ("LoRA", "actor_rollout_ref.model.lora_rank=4")
FULL = ("all weights", "actor_rollout_ref.model.lora_rank=0")
GUIDANCE = ("guidance", f"{ROLLOUT}.pipeline.guidance_scale=4.5")
ALGORITHMS = [
    (name, f"{ACTOR}.diffusion_loss.loss_mode={mode}")
    for name, mode in (("Flow-GRPO", "flow_grpo"), ("DiffusionNFT", "diffusion_nft"), ("DiffusionDPO", "diffusion_dpo"))
]
KL = ("KL", f"{ACTOR}.use_kl_loss=true")
BFLOAT16 = ("bfloat16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bfloat16")
CHECKPOINTING = ("checkpointing", "actor_rollout_ref.model.enable_gradient_checkpointing=true")
FIRST = "sd3"
SIZES = [f"{ROLLOUT}.pipeline.height=512", f"{ROLLOUT}.pipeline.width=512"]
FRAMES = f"{ROLLOUT}.pipeline.num_frames=5"  # of a video; its other dimensions are an image's


def variants(family: str) -> list[list[tuple[str, str]]]:
    """Settings to compare, each with its name: all of them for `FIRST`, the usual ones for the others."""
    grpo = ALGORITHMS[0]
    if family != FIRST:
        return [[grpo, LORA], [grpo, LORA, BFLOAT16]]
    settings = (
        [FULL],
        [FULL, KL],
        [LORA, GUIDANCE],
        [LORA, KL],
        [LORA, CHECKPOINTING],
        [LORA, BFLOAT16],
        [FULL, BFLOAT16],
    )
    dpo = ALGORITHMS[-1]
    return [*([setting, LORA] for setting in ALGORITHMS), [dpo, FULL], *([grpo, *setting] for setting in settings)]


def measure(*, gpu: bool) -> list[dict[str, Any]]:
    """A row per family and variant."""
    rows = []
    device, sizes = ("cuda", SIZES) if gpu else ("cpu", [])
    for family in (FIRST, *sorted(FOLDERS.keys() - {FIRST})):
        wide = family_sizes(family).WIDE if gpu else None
        frames = [FRAMES] if FOLDERS[family].videos else []
        for variant in variants(family):
            settings = [setting for _, setting in variant] + frames + sizes
            comparison = compare(family, settings, device, wide)
            rows.append({**comparison, "variant": ", ".join(name for name, _ in variant)})
            print(f"{family}, {rows[-1]['variant']}: {comparison['ratio']:.3f}", flush=True)
    return rows


def main() -> int:
    """Measure, write the data and the page. Returns 1 if an estimate is off by more than 15%."""
    parser = arguments(__doc__, "fit_accuracy", repeats=0)
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA GPU")
    options = parser.parse_args()
    out = results_file(parser, options)
    rows = measure(gpu=options.gpu)
    write(out, rows)
    table(rows, ["family", "variant", "estimated", "measured", "ratio"])
    page_tables.update(*fit_page.ACCURACY, out)
    return int(not all(0.85 < row["ratio"] < 1.15 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
