"""PURE, without torch: `SdeSettings`: noise of the sampler's steps, and the steps that may have it."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from verl_omni.settings_schema.declarations import SDE_TYPES, SETTINGS

SAMPLE_STRATEGIES = SETTINGS["actor_rollout_ref.rollout.algo.sample_strategy"].values
MOST_NOISE = 1e6  # far beyond what a sampler can use; without a limit a sample overflows
SCATTERED_PROGRESSIVE = "a progressive window is contiguous: write sde_contiguous=true or sample_strategy=random"
DEFAULT_HIGH = 5  # steps that a window with a size and without a range may lie in


@dataclass(frozen=True, slots=True)
class SdeSettings:
    """SDE of a sample, as the settings `rollout.algo` and the extra arguments of a request name it.

    Example:
        SdeSettings(noise_level=0.7, window_size=2, window_range=(0, 5))
    """

    noise_level: float = 0.0
    """Scale of the noise (`a` in Flow-GRPO, arXiv:2505.05470); every step follows the ODE at 0 and below."""
    kind: str = "sde"
    """One of `SDE_TYPES`."""
    window_size: int | None = None
    """Number of steps with noise; None: all of the range."""
    window_range: tuple[int, int] | None = None
    """Steps [low, high) that the window lies in; None: all but the last, and with a size the first `DEFAULT_HIGH` of
    them, as in verl-omni."""
    strategy: str = "random"
    """`random`, or `progressive`: one moving window."""
    iters_per_group: int = 1
    """Training steps after which a progressive window moves by one step."""
    window_seed: int | None = None
    """Seed of random windows, which with the training step gives all its samples one; None: the request's own."""
    contiguous: bool = True
    """Whether the steps of a window follow each other."""

    @classmethod
    def read(cls, algo: Mapping[str, Any]) -> Self:
        """The settings by their names in `DiffusionRolloutAlgoConfig`; None and absent ones have their defaults.

        Raises:
            ValueError: `sample_strategy` or `sde_type` is unknown, the noise level is not finite or above `MOST_NOISE`,
                or a progressive window is not contiguous or never moves.
            LookupError, TypeError: a value is of a wrong type.
        """
        settings = cls(
            noise_level=float(algo.get("noise_level") or 0.0),
            kind=str(algo.get("sde_type") or "sde"),
            window_size=None if (size := algo.get("sde_window_size")) is None else operator.index(size),
            window_range=None if (ends := algo.get("sde_window_range")) is None else (int(ends[0]), int(ends[1])),
            strategy=str(algo.get("sample_strategy") or "random"),
            iters_per_group=1 if (steps := algo.get("iters_per_group")) is None else int(steps),
            window_seed=None if (seed := algo.get("sde_window_seed")) is None else int(seed),
            contiguous=algo.get("sde_contiguous") is not False,
        )
        if not abs(settings.noise_level) <= MOST_NOISE:
            raise ValueError(
                f"noise_level must be a finite number, at most {MOST_NOISE:g}, not {settings.noise_level:g}"
            )
        if settings.kind not in SDE_TYPES:
            raise ValueError(f"Unknown sde_type {settings.kind!r}; one of {SDE_TYPES}")
        if settings.strategy not in SAMPLE_STRATEGIES:
            raise ValueError(f"Unknown sample_strategy {settings.strategy!r}; one of {SAMPLE_STRATEGIES}")
        if settings.strategy == "progressive" and settings.iters_per_group <= 0:
            raise ValueError(
                f"iters_per_group must be positive when sample_strategy is progressive: {settings.iters_per_group}"
            )
        if settings.strategy == "progressive" and not settings.contiguous:
            raise ValueError(SCATTERED_PROGRESSIVE)
        return settings

    def bounds(self, steps: int) -> tuple[int, int, int]:
        """Steps [low, high) of `steps` denoising steps that the window lies in, and its size.

        Without a size it has every step but the last, because noise added in the last step is never denoised.

        Raises:
            ValueError: the window does not fit.
        """
        size = self.window_size
        most = steps - 1 if size is None else min(DEFAULT_HIGH, steps - 1)
        low, high = (0, most) if self.window_range is None else self.window_range
        if size is None:
            size = steps - 1 if self.window_range is None else high - low
        if not (0 <= low < high <= steps and 0 < size <= high - low):
            raise ValueError(f"an SDE window of {size} steps does not fit into [{low}, {high}) of {steps} steps")
        return low, high, size
