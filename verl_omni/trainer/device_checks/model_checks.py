"""Checks of a device in one process: matrix multiplication, the model of each family, and an update's memory."""

import math
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_omni.algos.agreement import VELOCITY_TOLERANCES
from verl_omni.pipelines.registry import FOLDERS, family_sizes, lent_folder
from verl_omni.trainer.device_checks import measured_update
from verl_omni.trainer.device_checks.results import Check, require

DEVICE = "device"  # the check that all others need
BFLOAT16 = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bfloat16"
FLOAT32 = BFLOAT16.replace("bfloat16", "float32")
LORA = "actor_rollout_ref.model.lora_rank=8"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing=true"
VIDEO = "actor_rollout_ref.rollout.pipeline.num_frames=5"
SIDE = 512  # side of the multiplied matrices
MULTIPLICATION = 1e-2  # relative difference of a product in bfloat16 from float64: rounding gives 2e-3
WIDE_IMAGES = ("height=512", "width=512")
ESTIMATE = 0.15  # by how much of the measured peak the estimate may be off
MIB = 1 << 20


def checks(device: str) -> dict[str, Check]:
    """The checks by name.

    Args:
        device: its type: `cuda`, `npu` or `cpu`.
    """
    families: dict[str, Check] = {
        f"{name} in bfloat16": partial(family, name, device)
        for name, description in FOLDERS.items()
        if not description.input_images
    }
    return {DEVICE: partial(seen, device), **families, "memory and speed": partial(update_of_known_size, device)}


def seen(device: str) -> str:
    """Torch multiplies matrices on the device, in bfloat16, as float64 does on the CPU."""
    if device != "cpu":
        require(torch.get_device_module(device).is_available(), f"torch {torch.__version__} has no {device} device")
    left, right = (torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    exact = left.bfloat16().double() @ right.bfloat16().double()
    product = (left.bfloat16().to(device) @ right.bfloat16().to(device)).double().cpu()
    error = float((product - exact).norm() / exact.norm())
    require(error < MULTIPLICATION, f"a product of bfloat16 matrices is wrong by {error:.2g} of its size")
    name = device_name(device)
    if device == "cpu":
        return name
    free, total = torch.get_device_module(device).mem_get_info()
    return f"{name}, {free / MIB:.0f} of {total / MIB:.0f} MiB free"


def device_name(device: str) -> str:
    """The name that the driver reports; `cpu` of the CPU."""
    return device if device == "cpu" else str(torch.get_device_module(device).get_device_name())


def family(name: str, device: str) -> str:
    """A tiny model predicts in bfloat16 what it predicts on the CPU in float32, and trains a step.

    With an adapter and activation checkpointing.
    """
    frames = [VIDEO] if FOLDERS[name].videos else []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        measured_update.make_model(name, model)
        config = measured_update.load_settings(model, [LORA, BFLOAT16, CHECKPOINTING, *frames], device)
        plain = measured_update.load_settings(model, [LORA, FLOAT32, *frames])
        actor = measured_update.make_actor(config, device)
        exact = measured_update.make_actor(plain, "cpu")
        batch, arguments = measured_update.training_batch(config, actor.algorithm)
    here, there = (velocity(checked, batch, arguments["guidance_scale"]) for checked in (actor, exact))
    difference = float((here - there).norm() / there.norm())
    limit = VELOCITY_TOLERANCES[torch.bfloat16]
    require(difference < limit, f"velocities differ by {difference:.2g} from the CPU's in float32, limit {limit:g}")
    metrics = actor.update(dict(batch), **arguments)
    norm = metrics.get("actor/grad_norm", math.nan)
    require(math.isfinite(norm) and norm > 0, f"the norm of the gradient is {norm}")
    return f"velocities differ by {difference:.1%} from the CPU's in float32; a training step has gradients"


@torch.no_grad()
def velocity(actor: Any, batch: dict[str, Tensor], guidance: float) -> Tensor:
    """Velocity that an actor predicts at the first recorded step of each row, on the CPU."""
    part = {name: tensor.to(actor.device) for name, tensor in batch.items()}
    predicted: Tensor = actor.policy.velocity(part, part["all_latents"][:, 0], part["all_timesteps"][:, 0], guidance)
    actor.policy.reshard()
    return predicted.float().cpu()


def update_of_known_size(device: str) -> str:
    """The peak of an update is as `drl fit` estimates it; also says which part of the device's FLOPs was used."""
    settings = [LORA, BFLOAT16, CHECKPOINTING]
    folder = lent_folder()
    wide: Mapping[str, Any] = {}
    if device != "cpu":
        wide = family_sizes(folder).WIDE  # so that kernels and not their launches dominate the time
        settings += [f"actor_rollout_ref.rollout.pipeline.{size}" for size in WIDE_IMAGES]
    comparison = measured_update.compare(folder, settings, device, wide)
    ratio = comparison["ratio"]
    used = comparison["metrics"]
    measured, estimated = (comparison[name] / MIB for name in ("measured", "estimated"))
    text = f"peak of an update {measured:.0f} MiB, drl fit estimates {estimated:.0f}"
    require(abs(ratio - 1) <= ESTIMATE, f"{text}: {ratio:.2f} times, which is off by more than {ESTIMATE:.0%}")
    speed = f"{used['perf/flops/actor'] / comparison['seconds'] / 1e12:.3g} TFLOP/s"
    share = (
        f"{used['perf/mfu/actor']:.1%} of the device's"
        if "perf/mfu/actor" in used
        else "the device's peak is not known"
    )
    return f"{text}; {speed}, {share}"
