"""PURE: checks of sampling parameters, which vLLM-Omni passes on to the model unchecked.

A value of a wrong type fails the whole batch of a request, and a value that is not finite gives an image of nothing.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

# limits of `/v1/images/generations`, which not all routes have
HTTP_STEPS = 200
HTTP_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers that a parameter may be, from `low` to `high`."""

    low: float
    high: float = math.inf

    def accept(self, value: Any) -> bool:
        """Whether the value is one of them; NaN is not."""
        kind: Any = Integral if isinstance(self.low, int) else Real
        return isinstance(value, kind) and not isinstance(value, bool) and bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        number = "a whole number" if isinstance(self.low, int) else "a number"
        upwards = f"to {self.high}" if math.isfinite(self.high) else "on"
        return f"{number} from {self.low} {upwards}"


FIELDS: dict[str, Bounds] = {
    "height": Bounds(1),
    "width": Bounds(1),
    "num_frames": Bounds(1),
    "resolution": Bounds(1),
    "num_inference_steps": Bounds(1),
    "max_sequence_length": Bounds(1),
    "num_outputs_per_prompt": Bounds(1, 1),  # the others would be dropped
    "seed": Bounds(-(2**63), 2**64 - 1),  # bounds of `torch.Generator.manual_seed`
    "guidance_scale": Bounds(0.0, 1e6),
    "guidance_scale_2": Bounds(0.0, 1e6),
    "true_cfg_scale": Bounds(0.0, 1e6),
    "lora_scale": Bounds(-1e6, 1e6),
}
SHIFT = Bounds(1e-3, 1e3)  # noise levels fall from 1 to 0 with a positive one only
HTTP_FIELDS = FIELDS | {
    "num_inference_steps": Bounds(1, HTTP_STEPS),
    "num_outputs_per_prompt": Bounds(1, HTTP_SAMPLES),
}


def check_sampling(params: Any, *, device: str, over_http: bool) -> None:
    """Check the parameters of a request to a diffusion model.

    Args:
        params: the engine's; None means "not set".
        device: type of the device that the engine computes on.
        over_http: whether a client sent it, who could otherwise keep the engine from training.

    Raises:
        ValueError: a parameter is of a wrong type, or out of range.
    """
    for name, bounds in (HTTP_FIELDS if over_http else FIELDS).items():
        value = getattr(params, name, None)
        if value is not None and not bounds.accept(value):
            raise ValueError(f"{name} must be {bounds}, not {value!r}")
    shift = (getattr(params, "extra_args", None) or {}).get("flow_shift")
    if shift is not None and not SHIFT.accept(shift):
        raise ValueError(f"flow_shift must be {SHIFT}, not {shift!r}")
    where = getattr(params, "generator_device", None)
    if where not in (None, "cpu", device):
        raise ValueError(f"generator_device must be {' or '.join(sorted({'cpu', device}))}, not {where!r}")
