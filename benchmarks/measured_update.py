"""Real peak of one update of a small model, counted by torch's allocator, and the estimate of `drl fit` for it."""

from __future__ import annotations

import gc
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

# A transformer of each family that is large enough for its layers, and not its embeddings, to need the memory.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sd3": (
        "SD3Transformer2DModel",
        {
            "sample_size": 32, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 6,
            "attention_head_dim": 32, "num_attention_heads": 6, "joint_attention_dim": 64,
            "caption_projection_dim": 192, "pooled_projection_dim": 64, "pos_embed_max_size": 32,
            "qk_norm": "rms_norm", "dual_attention_layers": [0, 1],
        },
    ),
    "qwen_image": (
        "QwenImageTransformer2DModel",
        {
            "in_channels": 16, "out_channels": 4, "num_layers": 5, "attention_head_dim": 32,
            "num_attention_heads": 6, "joint_attention_dim": 32, "axes_dims_rope": [8, 12, 12],
        },
    ),
    "qwen_image_edit": (
        "QwenImageTransformer2DModel",
        {
            "in_channels": 16, "out_channels": 4, "num_layers": 5, "attention_head_dim": 32,
            "num_attention_heads": 6, "joint_attention_dim": 32, "axes_dims_rope": [8, 12, 12],
        },
    ),
    "wan": (
        "WanTransformer3DModel",
        {
            "num_attention_heads": 6, "attention_head_dim": 32, "in_channels": 4, "out_channels": 4, "text_dim": 32,
            "freq_dim": 64, "ffn_dim": 512, "num_layers": 6,
        },
    ),
}  # fmt: skip
SETTINGS = (
    "data.train_files=none", "trainer.total_training_steps=1", "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", "actor_rollout_ref.rollout.pipeline.height=192",
    "actor_rollout_ref.rollout.pipeline.width=192", "actor_rollout_ref.rollout.pipeline.num_inference_steps=3",
    "actor_rollout_ref.rollout.pipeline.max_sequence_length=32",
)  # fmt: skip


def make_model(family: str, folder: Path) -> None:
    """Write a small random model: the tiny model of the family with a larger transformer."""
    import diffusers

    from verl_omni.models.tiny import MAKERS

    MAKERS[family](folder, 0)
    name, config = TRANSFORMERS[family]
    shutil.rmtree(folder / "transformer")
    getattr(diffusers, name).from_config(config).save_pretrained(folder / "transformer")


def load_settings(folder: Path, overrides: Sequence[str]) -> Any:
    """The trainer's settings for a model folder, on the CPU."""
    from verl_omni.trainer import settings, startup

    config = settings.load([f"actor_rollout_ref.model.path={folder}", *SETTINGS, *overrides])
    if config.trainer.max_log_prob_difference is not None:
        config.trainer.max_log_prob_difference = math.inf  # the random batch has log-probabilities of no policy,
        config.trainer.max_velocity_difference = math.inf  # and velocities of none
    startup.fit_to_machine(config, has_accelerator=False)
    return config


def estimated_peak(config: Any) -> int:
    """Bytes that `drl fit` counts for the trainer in an update."""
    from verl_omni.trainer.memory_estimate import trainer_memory
    from verl_omni.trainer.memory_estimate.model_shapes import read
    from verl_omni.trainer.memory_estimate.sample_tensors import training_sample

    model = read(Path(config.actor_rollout_ref.model.path))
    found = trainer_memory.measure(config, model, training_sample(config, model), ranks=1, accelerator=False)
    state = found.weights + found.delayed_copies + found.gradients + found.optimizer
    return state + max(found.inputs + found.activations, found.step_temporary)


def measured_peak(config: Any) -> int:
    """Peak bytes of tensors of the real actor during its second update, when the optimizer has its state.

    What exists before the update is counted as it is; during it every allocation and release of torch's CPU allocator
    is counted, also those inside of operators. The batch of the caller does not count.
    """
    from verl.utils.config import omega_conf_to_dataclass

    from verl_omni.workers.actor.actor import DiffusionActor

    settings = config.actor_rollout_ref
    actor = DiffusionActor(
        omega_conf_to_dataclass(settings.model), omega_conf_to_dataclass(settings.actor), settings.rollout.n
    )
    batch, arguments = _batch(config, actor.algorithm)
    actor.update(dict(batch), **arguments)
    gc.collect()
    states = [value for state in actor.optimizer.state.values() for value in state.values()]
    old = list(actor.policy.old.values.values()) if actor.policy.old else []
    base = list(actor.policy.base.parameters()) if actor.policy.base else []
    before = sum(t.nbytes for t in (*actor.module.parameters(), *actor.module.buffers(), *base, *states, *old))
    return before + allocated_peak(lambda: actor.update(dict(batch), **arguments))


def allocated_peak(run: Any) -> int:
    """Largest sum of the allocations of torch's CPU allocator, minus its releases, while `run` runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _batch(config: Any, algorithm: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A training batch of real random tensors, and the arguments of an update."""
    from types import SimpleNamespace

    from verl.utils.config import omega_conf_to_dataclass

    from verl_omni.trainer.memory_estimate.model_shapes import read
    from verl_omni.trainer.memory_estimate.sample_tensors import training_sample

    settings, generator = config.actor_rollout_ref, torch.Generator().manual_seed(0)
    prompts, n = config.data.train_batch_size, settings.rollout.n
    rows = prompts * n
    tensors = {}
    for name, tensor in training_sample(config, read(Path(settings.model.path))).items():
        if not tensor.is_meta:
            tensors[name] = tensor.expand(rows, *tensor.shape).clone()
        elif tensor.is_floating_point():
            tensors[name] = torch.randn(rows, *tensor.shape, generator=generator).to(tensor.dtype)
        else:
            tensors[name] = torch.ones(rows, *tensor.shape, dtype=tensor.dtype)
    samples = SimpleNamespace(
        tensors=tensors,
        scores=torch.arange(rows, dtype=torch.float32) + 0.5,
        groups=[str(row // n) for row in range(rows)],
    )
    loss = omega_conf_to_dataclass(settings.actor.diffusion_loss)
    return algorithm.training_batch(samples, loss, config, 0), algorithm.update_arguments(config, 1)


def compare(family: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Estimated and measured peak of a small model of a family."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(family, Path(folder) / "model")
        config = load_settings(Path(folder) / "model", overrides)
        estimated, measured = estimated_peak(config), measured_peak(config)
    return {"family": family, "estimated": estimated, "measured": measured, "ratio": estimated / measured}
