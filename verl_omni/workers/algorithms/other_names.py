"""PURE: aliases of algorithms, from the reference and from papers, with the settings that they imply."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"
SAMPLED_FOR = "actor_rollout_ref.model.algorithm"
ALGO = "actor_rollout_ref.rollout.algo"
ESTIMATOR = "algorithm.adv_estimator"


@dataclass(frozen=True, slots=True)
class OtherName:
    """Meaning of an alias.

    Attributes:
        algorithm: name of the algorithm here.
        defaults: overrides; the user's overrides come after them.
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

    The algorithm is `loss_mode`; without it `model.algorithm`, as in the reference; without both `default`. If
    one is given several times, the last value counts.

    Args:
        parse: an override's text to its value; Hydra's values may have quotes.

    Raises:
        ValueError: two settings name different algorithms that are Flow-GRPO with other settings.
    """
    values: dict[str, str] = {}
    others: list[str] = []
    for override in overrides:
        name, _, text = override.partition("=")
        if (setting := name.lstrip("+")) in (LOSS, SAMPLED_FOR, ESTIMATOR):
            values[setting] = parse(text)
        if setting == SAMPLED_FOR:
            others.append(f"{name}={_meant(values[setting]).algorithm}")
        elif setting != LOSS:
            others.append(override)
    if problem := _contradiction(values):
        raise ValueError(problem)
    defaults = [line for setting in (SAMPLED_FOR, LOSS) for line in _meant(values.get(setting, "")).defaults]
    sampled_for = values.get(SAMPLED_FOR, "")
    named = values.get(LOSS) or ("" if "${" in sampled_for else sampled_for) or default
    return _meant(named).algorithm, [*defaults, *others]


def _meant(name: str) -> OtherName:
    return OTHER_NAMES.get(name, OtherName(name))


def _contradiction(given: Mapping[str, str]) -> str | None:
    """Why names of algorithms exclude each other, by the settings that name them; None if they do not."""
    named = {setting: value for setting, value in given.items() if _meant(value).defaults}
    if len(set(named.values())) < 2:
        return None
    return (
        " and ".join(f"{setting}={value}" for setting, value in sorted(named.items()))
        + ": these are different algorithms; name one of them"
    )
