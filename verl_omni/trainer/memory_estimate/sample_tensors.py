"""Tensors of one training sample, as the engine records them and the trainer gets them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from torch import Tensor

from verl_omni.algos import agreement
from verl_omni.algos.sde_settings import SdeSettings
from verl_omni.pipelines.registry import NEGATIVE, training_adapter
from verl_omni.pipelines.sample_shapes import example, sample_shapes
from verl_omni.samples import RECORDED
from verl_omni.trainer.memory_estimate.model_shapes import ModelShapes
from verl_omni.workers.config.diffusion.dtypes import parse_dtype


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes of samples in the object store.

    Attributes:
        own: bytes of one sample alone.
        prompt: bytes that the samples of a prompt share.
        negative: bytes that all samples share.
    """

    own: int
    prompt: int
    negative: int

    def total(self, samples: int, prompts: int) -> int:
        """Bytes of the samples of some prompts."""
        return samples * self.own + prompts * self.prompt + self.negative


def stored_bytes(sample: Mapping[str, Tensor]) -> StoredBytes:
    """Bytes of a sample by what it is shared with."""
    recorded = sum(tensor.nbytes for name, tensor in sample.items() if name in RECORDED)
    negative = sum(tensor.nbytes for name, tensor in sample.items() if name.startswith(NEGATIVE))
    return StoredBytes(recorded, sum(tensor.nbytes for tensor in sample.values()) - recorded - negative, negative)


def training_sample(config: DictConfig, model: ModelShapes) -> dict[str, Tensor]:
    """The tensors of one sample that training reads; those without values are on the meta device.

    They have no batch dimension. Latents and embeddings have the dtype of the engine. For a pair of a data set, the
    sample is one of its images, as the trainer encodes it: embeddings in its compute dtype, without the ones for
    guidance, and latents in float32.
    """
    rollout = config.actor_rollout_ref.rollout
    if config.algorithm.sample_source == "offline":
        param_dtype = config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype
        computed = parse_dtype("mixed_precision.param_dtype", param_dtype)
        tensors, latents = _conditions(config, model, computed, guided=False)
        return {**tensors, "clean_latents": latents.float()}
    dtype = parse_dtype("rollout.dtype", rollout.dtype)
    # On final latents, training has no guidance, and the engine records nothing for it.
    tensors, latents = _conditions(config, model, dtype, guided=rollout.calculate_log_probs and _is_guided(config))
    if rollout.calculate_log_probs:
        steps = window_size(config)
        levels = torch.linspace(0.9, 0.1, steps + 1 if rollout.algo.sde_contiguous else 2 * steps)
        tensors |= {
            "all_latents": example(len(levels), *latents.shape, dtype=dtype),
            "all_timesteps": levels[:steps] * 1000,
            "all_sigmas": levels,
            "sigma_max": torch.tensor([0.95]),
            "rollout_log_probs": torch.zeros(steps),
            "velocity_projections": torch.zeros(steps, agreement.PROJECTIONS + 1),
        }
    if rollout.algo.clean_latents:
        tensors["clean_latents"] = latents
        tensors["sampler_levels"] = torch.linspace(1.0, 0.1, rollout.pipeline.num_inference_steps)
    return tensors


def engine_conditions(config: DictConfig, model: ModelShapes) -> dict[str, Tensor]:
    """The tensors that an engine has of one sample besides its latents and what it records; as `training_sample`."""
    dtype = parse_dtype("rollout.dtype", config.actor_rollout_ref.rollout.dtype)
    return _conditions(config, model, dtype, guided=_is_guided(config))[0]


def _is_guided(config: DictConfig) -> bool:
    settings = config.actor_rollout_ref
    return training_adapter(settings.model.architecture).guidance(settings.rollout.pipeline) > 1


def _conditions(
    config: DictConfig, model: ModelShapes, dtype: torch.dtype, *, guided: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs of the velocity of one sample besides latents and time, and the latents."""
    rollout = config.actor_rollout_ref.rollout
    architecture = config.actor_rollout_ref.model.architecture
    shapes = sample_shapes(architecture).sample(model.configs, rollout.pipeline, rollout.max_prompt_embed_length)
    shapes = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in shapes.items()}
    names = training_adapter(architecture).CONDITIONS
    return {name: shapes[name] for name in names if guided or not name.startswith(NEGATIVE)}, shapes["latents"]


def window_size(config: DictConfig) -> int:
    """Number of recorded denoising steps of a sample."""
    rollout = config.actor_rollout_ref.rollout
    _, _, size = SdeSettings.read(rollout.algo).bounds(rollout.pipeline.num_inference_steps)
    return size


def fake_rows(model: ModelShapes, sample: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """A batch of such samples: fake tensors, or real ones for those that have values. Masks select all rows."""
    batch = {}
    for name, tensor in sample.items():
        if not tensor.is_meta:
            batch[name] = tensor.expand(rows, *tensor.shape).clone()
        elif tensor.is_floating_point():
            batch[name] = model.empty(rows, *tensor.shape, dtype=tensor.dtype)
        else:
            batch[name] = torch.ones(rows, *tensor.shape, dtype=tensor.dtype)
    return batch


def signature(sample: Mapping[str, Tensor]) -> str:
    """Key of everything that determines a batch's memory: names, shapes, dtypes, and values if there are any."""
    return repr(
        {
            name: (list(tensor.shape), tensor.dtype, None if tensor.is_meta else tensor.tolist())
            for name, tensor in sample.items()
        }
    )
