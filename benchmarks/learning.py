"""Learning of an example job with settings that change what is learned, and with learning rate 0 as a control.

    python benchmarks/learning.py [--variants ema fraction ...] [--seeds 0] [--steps 40] [--out FILE]

Each variant is `examples/red-grpo.yaml` with other settings (`VARIANTS`). Its held-out scores before and after
are of the same prompts and seeds. The data of the runs so far are written after each run.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from example_job import HERE, gain, measure, overrides
from results import FIGURES, write

JOB = HERE.parent / "examples" / "red-grpo.yaml"
ACTOR = "actor_rollout_ref.actor"
ATTENTION = (
    "spec.model.lora={targetModules: [attn.to_q, attn.to_k, attn.to_v, attn.to_out.0]}",
    "spec.trainer.learningRate=0.002",
)
ALL_WEIGHTS = ("spec.model.lora.enabled=false", "spec.trainer.learningRate=0.002")
KL = f"{ACTOR}.use_kl_loss=true"
NFT = ("spec.algorithm.name=DiffusionNFT", "spec.rollout.sampler.noiseLevel=0")
# Kilobytes and a difference of channels: the first has a range several times as wide as the second.
TWO_SCORERS = ("spec.reward.scorers=[{name: color, settings: {color: red}}, {name: jpeg}]",)


RISE = 0.05  # of a held-out score, which is from -1 to 1: more is learning


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from the example.

    Attributes:
        text: for the page. settings: of the trainer. assignments: to fields of the job.
        score: the held-out mean that must rise by `RISE`, or with `learns` false must not.
    """

    text: str
    settings: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    score: str = "reward"
    learns: bool = True

    def as_expected(self, run: dict[str, Any]) -> bool:
        """Whether the run learned, or did not, as it should."""
        return (gain(run, self.score)[0] > RISE) == self.learns


VARIANTS = {
    "plain": Variant("the example itself"),
    "control": Variant("learning rate 0", assignments=("spec.trainer.learningRate=0",), learns=False),
    "ema": Variant("`actor.ema_decay=0.9` without its warm-up; the average is evaluated", (f"{ACTOR}.ema_decay=0.9",)),
    "fraction": Variant("`algorithm.timestep_fraction=0.5`", ("algorithm.timestep_fraction=0.5",)),
    "weighted-mean": Variant(
        "scorers `color` and `jpeg`, weighted mean", assignments=TWO_SCORERS, score="reward/color", learns=False
    ),
    "normalized-sum": Variant(
        "the same, `reward.aggregation=normalized_sum`",
        ("reward.aggregation=normalized_sum",),
        TWO_SCORERS,
        score="reward/color",
    ),
    "attention": Variant(
        "an adapter of rank 32 for the image's attention layers, learning rate 0.002", assignments=ATTENTION
    ),
    "attention-kl": Variant(
        "the same, `use_kl_loss=true`, `kl_loss_coef=0.001`", (KL, f"{ACTOR}.kl_loss_coef=0.001"), ATTENTION
    ),
    "attention-strong-kl": Variant(
        "the same, `kl_loss_coef=0.1`", (KL, f"{ACTOR}.kl_loss_coef=0.1"), ATTENTION, learns=False
    ),
    "all-weights": Variant("all weights, learning rate 0.002", assignments=ALL_WEIGHTS),
    "all-weights-kl": Variant(
        "the same, `use_kl_loss=true`, `kl_loss_coef=0.001`", (KL, f"{ACTOR}.kl_loss_coef=0.001"), ALL_WEIGHTS
    ),
    "all-weights-strong-kl": Variant(
        "the same, `kl_loss_coef=0.1`", (KL, f"{ACTOR}.kl_loss_coef=0.1"), ALL_WEIGHTS, learns=False
    ),
    "nft": Variant("DiffusionNFT with its defaults", assignments=NFT),
    "nft-levels": Variant(
        "the same, `algorithm.timestep_fraction=1`: the sampler's noise levels", ("algorithm.timestep_fraction=1",), NFT
    ),
    "nft-clip-1": Variant(
        "the same, `diffusion_loss.adv_clip_max=1`", (f"{ACTOR}.diffusion_loss.adv_clip_max=1",), NFT
    ),
}


def changes(variant: Variant) -> list[str]:
    """Assignments that make a variant of the example."""
    return [overrides(JOB, variant.settings), *variant.assignments]


def scores(run: dict[str, Any]) -> list[str]:
    """Names of the held-out means: the reward, and what each of several scorers gave."""
    ends = "/mean"
    means = (name.removesuffix(ends) for name in run["held_out"][0] if name.endswith(ends) and "reward" in name)
    return sorted(name for name in means if name != "reward/combined")  # which is `reward`


def main() -> int:
    """Measure, write and print. Returns 1 if a variant that should learn did not, or one that should not did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=FIGURES / "learning.json")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    failed = False
    for seed in chosen.seeds:
        for name in chosen.variants:
            variant = VARIANTS[name]
            run = measure(JOB, seed, chosen.steps, chosen.runs, control=False, variant=name, changes=changes(variant))
            runs.append({"variant": name, **run})
            write(chosen.out, runs)
            rises = {score: gain(run, score) for score in scores(run)}
            texts = ", ".join(f"{score} {rise:+.3f} ± {error:.3f}" for score, (rise, error) in rises.items())
            print(f"seed {seed}, {name}: {texts}, {run['seconds']:.0f} s", flush=True)
            failed |= not variant.as_expected(run)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
