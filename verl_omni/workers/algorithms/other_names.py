"""PURE: other names of algorithms, those of the reference and of papers, to the algorithm and its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOSS, SAMPLED_FOR = "actor_rollout_ref.actor.diffusion_loss.loss_mode", "actor_rollout_ref.model.algorithm"
ALGO, ESTIMATOR = "actor_rollout_ref.rollout.algo", "algorithm.adv_estimator"


@dataclass(frozen=True, slots=True)
class OtherName:
    """What a name stands for.

    Attributes:
        algorithm: name of the algorithm here.
        defaults: overrides; those of the user come after them.
    """

    algorithm: str
    defaults: tuple[str, ...] = ()


OTHER_NAMES = {
    "dpo": OtherName("diffusion_dpo"),
    # arXiv:2505.07818
    "dance_grpo": OtherName("flow_grpo", (f"{ALGO}.sde_type=dance_sde", f"{ESTIMATOR}=dance_grpo")),
    # arXiv:2507.21802, with the window of the reference's defaults: one random place in each training step
    "mix_grpo": OtherName("flow_grpo", (f"{ALGO}.sde_window_seed=0", f"{ESTIMATOR}=mix_grpo")),
}


def canonical(name: str) -> str:
    """The name here of an algorithm; unchanged if that needs other settings too."""
    meant = OTHER_NAMES.get(name)
    return name if meant is None or meant.defaults else meant.algorithm


def resolve(overrides: Sequence[str], default: str, parse: Callable[[str], str]) -> tuple[str, list[str]]:
    """The algorithm's name, and the overrides without it, by the names that are used here.

    The algorithm is `loss_mode`; without it `model.algorithm`, as in the reference; without both `default`.

    Args:
        parse: an override's text to its value; Hydra's values may have quotes.
    """
    loss: str | None = None
    sampled_for: str | None = None
    defaults: list[str] = []
    others: list[str] = []
    for override in overrides:
        name, _, text = override.partition("=")
        setting = name.lstrip("+")
        if setting not in (LOSS, SAMPLED_FOR):
            others.append(override)
            continue
        value = parse(text)
        meant = OTHER_NAMES.get(value, OtherName(value))
        defaults.extend(meant.defaults)
        if setting == LOSS:
            loss = meant.algorithm
        else:
            others.append(f"{name}={meant.algorithm}")
            sampled_for = None if "${" in value else meant.algorithm
    return loss or sampled_for or default, [*defaults, *others]
