"""Memory of the engine on one device: the weights of all components, and the largest of its passes on fakes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from verl_omni.pipelines.registry import training_adapter
from verl_omni.pipelines.sample_shapes import sample_shapes
from verl_omni.trainer.memory_estimate.model_shapes import TRANSFORMER, VAE, ModelShapes, tensor_bytes
from verl_omni.trainer.memory_estimate.peak_tracker import PeakTracker
from verl_omni.trainer.memory_estimate.sample_tensors import fake_rows
from verl_omni.workers.config.diffusion.dtypes import parse_dtype

# Text encoders of which the engine's pipelines keep the hidden states of all layers.
ALL_HIDDEN_STATES = ("CLIPTextModelWithProjection", "Qwen2_5_VLForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one engine worker, awake.

    Attributes:
        transformer: its share of the transformers under tensor parallelism. text_encoders, vae: whole.
        passes: peak beyond the weights of each pass; encoding, denoising and decoding follow each other.
        batch: samples of one batch.
    """

    transformer: int
    text_encoders: int
    vae: int
    passes: Mapping[str, int]
    batch: int

    @property
    def weights(self) -> int:
        """All weights."""
        return self.transformer + self.text_encoders + self.vae


def measure(config: DictConfig, model: ModelShapes, sample: Mapping[str, Tensor], *, samples: int) -> EngineMemory:
    """Memory of a worker of an engine that generates `samples` samples in a step.

    Args:
        config: settings of the trainer, completed by `startup.fit_to_machine`.
        sample: tensors of one training sample.
    """
    rollout = config.actor_rollout_ref.rollout
    dtype = parse_dtype("rollout.dtype", rollout.dtype)
    batch = max(1, min(rollout.max_num_seqs, samples))
    passes: dict[str, int] = {}
    shapes = sample_shapes(config.actor_rollout_ref.model.architecture)
    encoder_input = getattr(shapes, "encoder_input", None)  # of families with input images
    encoders = 0
    for name in model.text_encoders:
        encoder = model.as_fake(model.on_meta(name, dtype))
        encoders += _weights(encoder)
        kept = {"output_hidden_states": True} if model.classes[name] in ALL_HIDDEN_STATES else {}
        longest = rollout.max_prompt_embed_length if encoder_input else rollout.pipeline.max_sequence_length
        length = _text_length(model.configs[name], longest)
        ids = torch.zeros(batch, length, dtype=torch.int64)
        passes["text encoding"] = max(passes.get("text encoding", 0), _peak(encoder, lambda: encoder(ids, **kept)))  # noqa: B023
    transformer = model.as_fake(model.on_meta(TRANSFORMER, dtype))
    passes["denoising"] = _denoising(config, model, transformer, sample, batch)
    vae: Any = model.as_fake(model.on_meta(VAE, dtype))
    latents = model.empty(batch, *shapes.decoder_input(model.configs, rollout.pipeline), dtype=dtype)
    passes["decoding"] = _peak(vae, lambda: vae.decode(latents, return_dict=False))
    if encoder_input:
        pixels = model.empty(batch, *encoder_input(model.configs, rollout.pipeline), dtype=dtype)
        passes["image encoding"] = _peak(vae, lambda: vae.encode(pixels, return_dict=False))
    return EngineMemory(
        transformer=model.transformers * math.ceil(_weights(transformer) / rollout.tensor_model_parallel_size),
        text_encoders=encoders,
        vae=_weights(vae),
        passes=passes,
        batch=batch,
    )


def _denoising(
    config: DictConfig, model: ModelShapes, transformer: nn.Module, sample: Mapping[str, Tensor], batch: int
) -> int:
    """One denoising step, with what the batch keeps meanwhile: latents, conditions and the recorded steps."""
    settings = config.actor_rollout_ref
    adapter = training_adapter(settings.model.architecture)
    shapes = sample_shapes(settings.model.architecture).sample(
        model.configs, settings.rollout.pipeline, settings.rollout.max_prompt_embed_length
    )
    rows = fake_rows(model, {"latents": shapes["latents"], **sample}, batch)
    latents, time = rows.pop("latents"), torch.full((batch,), 500.0)
    dtype = parse_dtype("rollout.dtype", settings.rollout.dtype)
    # With guidance the engine runs the two prompts one after the other; the trainer runs them as one batch.
    step = lambda: adapter.velocity(transformer, rows, latents, time, 1.0, dtype=dtype)  # noqa: E731
    return _peak(transformer, step) + tensor_bytes([latents, *rows.values()])


def _text_length(config: Mapping[str, Any], longest: int) -> int:
    """Tokens of a prompt in one text encoder."""
    positions = config.get("max_position_embeddings")
    return min(longest, positions) if positions else longest


def _peak(module: nn.Module, run: Any) -> int:
    """Peak of a pass without gradients, beyond the weights."""
    tracker = PeakTracker()
    module.eval()
    base = tracker.add([*module.parameters(), *module.buffers()])
    with torch.no_grad(), tracker:
        run()
    return tracker.peak - base


def _weights(module: nn.Module) -> int:
    return tensor_bytes([*module.parameters(), *module.buffers()])
