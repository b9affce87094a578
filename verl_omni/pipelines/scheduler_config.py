"""A model's own scheduler: its configuration, and the noise levels that it gives.

Samplers of this package take noise levels and timesteps from it, and step with a solver of their own: Euler's, whose
steps have a density.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_omni.utils.model_folder import INDEX

EULER = "FlowMatchEulerDiscreteScheduler"
UNIPC = "UniPCMultistepScheduler"
# What the sampler relies on. A setting that a file leaves out has this value, except for those below.
RELIED_ON: dict[str, dict[str, Any]] = {
    EULER: {"invert_sigmas": False, "stochastic_sampling": False},
    UNIPC: {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "final_sigmas_type": "zero"},
}
NEEDED = ("use_flow_sigmas", "prediction_type")
SHIFT = {EULER: "shift", UNIPC: "flow_shift"}


def scheduler_config(folder: Path, supported: Collection[str], *, dynamic: bool) -> dict[str, Any]:
    """The configuration of the scheduler in a model's folder, whose class is named in `model_index.json`.

    Args:
        supported: class names of the family's schedulers, of `RELIED_ON`.
        dynamic: whether the family's noise levels may depend on the size of a sample (`use_dynamic_shifting`).

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another class, or has settings that no sampler here has.
    """
    index = folder / INDEX
    file = folder / "scheduler" / "scheduler_config.json"
    name = str((json.loads(index.read_text(encoding="utf-8")).get("scheduler") or [None, None])[1])
    if name not in supported:
        raise ValueError(
            f"{index}: the scheduler {name} is not supported for this model; write {' or '.join(supported)}"
        )
    config: dict[str, Any] = {**json.loads(file.read_text(encoding="utf-8")), "_class_name": name}
    wanted = RELIED_ON[name] | ({} if dynamic else {"use_dynamic_shifting": False})
    for setting, value in wanted.items():
        if (configured := config.get(setting, None if setting in NEEDED else value)) != value:
            raise ValueError(
                f"{file}: {setting} of {name} must be {json.dumps(value)} for this model, not {json.dumps(configured)}"
            )
    return config


def noise_levels(config: dict[str, Any], steps: int, shift: float | None = None) -> tuple[Tensor, Tensor]:
    """Timesteps [S] and noise levels [S + 1], the last one 0, as diffusers' scheduler gives them, float32 on the CPU.

    Args:
        config: from `scheduler_config`, without `use_dynamic_shifting`.
        shift: replaces the configuration's.
    """
    import diffusers  # here: the trainer checks a configuration before it imports more than torch

    name = config["_class_name"]
    shift_argument = {} if shift is None else {SHIFT[name]: shift}
    scheduler = getattr(diffusers, name).from_config(config, **shift_argument)
    scheduler.set_timesteps(steps)
    return scheduler.timesteps.to(torch.float32), scheduler.sigmas.to(torch.float32)


def received(timesteps: Tensor, dtype: torch.dtype) -> Tensor:
    """Timesteps [S], float32, from which a trainer computes exactly what a model gets in `dtype`.

    For engine pipelines that round before and after the division by 1000, where the trainer's `velocity` rounds once.
    """
    return (timesteps.to(dtype) / 1000).float() * 1000
