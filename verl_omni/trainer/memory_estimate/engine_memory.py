"""Memory of the engine on one device: the weights of all components, and the largest of its passes on fakes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from verl_omni.pipelines.registry import training_adapter
from verl_omni.pipelines.sample_shapes import sample_shapes
from verl_omni.trainer.memory_estimate.caching_allocator import CachingAllocator
from verl_omni.trainer.memory_estimate.model_shapes import TRANSFORMER, VAE, ModelShapes, tensor_bytes
from verl_omni.trainer.memory_estimate.peak_tracker import PeakTracker
from verl_omni.trainer.memory_estimate.sample_tensors import fake_rows, signature
from verl_omni.workers.config.diffusion.dtypes import parse_dtype

TEXT_ENCODING = "text encoding"  # name of the pass, and of its phase if the encoders are in CPU memory otherwise
# Text encoders of which the engine's pipelines keep the hidden states of all layers.
QWEN_VL = "Qwen2_5_VLForConditionalGeneration"
ALL_HIDDEN_STATES = ("CLIPTextModelWithProjection", QWEN_VL)
# What vLLM-Omni's transformers divide under tensor parallelism: projections of attention, and feed-forward layers. All
# else is whole on each accelerator; the modulation of Qwen-Image's layers alone is a third of its weights.
DIVIDED = re.compile(r"\.(attn[12]?|ff|ff_context|ffn|img_mlp|txt_mlp)\.")

QUERY_KEY_VALUE = re.compile(r"\.(to|add)_[qkv](?:_proj)?\.")


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one engine worker, awake.

    Attributes:
        transformer: its share of the transformers under tensor parallelism. text_encoders, vae: not divided.
        offloaded: text encoders that are on the device only while they run, and always in CPU memory; `text_encoders`
            is then 0.
        passes: peak of each pass in addition to the weights: encoding, denoising, then decoding unless the output is
            latents.
        asleep: CPU memory for all weights while it sleeps; its process keeps it when it is awake.
        kept: memory that its allocator holds after the passes until the engine sleeps; 0 without an accelerator.
        batch: samples of one batch.
    """

    transformer: int
    text_encoders: int
    offloaded: int
    vae: int
    asleep: int
    passes: Mapping[str, int]
    kept: int
    batch: int

    @property
    def weights(self) -> int:
        """All weights."""
        return self.transformer + self.text_encoders + self.vae

    @property
    def peak(self) -> int:
        """Peak of its largest pass."""
        return max(self.passes.values())

    def or_larger(self, other: EngineMemory) -> EngineMemory:
        """Memory of the same engine that generates both this one's samples and the other's."""
        names = dict.fromkeys([*self.passes, *other.passes])
        passes = {name: max(self.passes.get(name, 0), other.passes.get(name, 0)) for name in names}
        return replace(self, passes=passes, kept=max(self.kept, other.kept), batch=max(self.batch, other.batch))

    @property
    def held(self) -> int:
        """Memory that its process holds for passes while it is awake."""
        return max(self.peak, self.kept)


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Memory of the passes of a batch on an engine with all weights, and the sizes of the weights.

    Attributes:
        encoders, vae: bytes of each tensor. transformer: likewise, with its name.
        passes, kept: see `EngineMemory`.
    """

    encoders: Sequence[int]
    transformer: Sequence[tuple[str, int]]
    vae: Sequence[int]
    vae_bytes: int
    passes: Mapping[str, int]
    kept: int


def measure(
    config: DictConfig,
    model: ModelShapes,
    sample: Mapping[str, Tensor],
    *,
    samples: int,
    accelerator: bool,
    known: dict[str, PassMemory] | None = None,
) -> EngineMemory:
    """Memory of a worker of an engine that generates `samples` samples in a step.

    Args:
        sample: conditions of one sample, and what the engine records of it.
        accelerator: whether there is one; without, convolutions have no workspaces, and no allocator keeps memory.
        known: cache of passes that were run for this model; this engine's passes are added.
    """
    rollout = config.actor_rollout_ref.rollout
    batch = max(1, min(rollout.max_num_seqs, samples))
    read = {"model": config.actor_rollout_ref.model.architecture, "accelerator": accelerator, "batch": batch}
    read |= {"dtype": rollout.dtype, "rows": rollout.max_prompt_embed_length, "sample": signature(sample)}
    key = repr(read) + OmegaConf.to_yaml(rollout.pipeline, resolve=True)
    known = {} if known is None else known
    if key not in known:
        known[key] = _run_passes(config, model, sample, batch, CachingAllocator() if accelerator else None)
    measured = known[key]
    divided = _fused(measured.transformer, rollout.tensor_model_parallel_size)
    offloaded = sum(measured.encoders) if accelerator and rollout.offload_text_encoders else 0
    encoders = [] if offloaded else measured.encoders
    return EngineMemory(
        transformer=model.transformers * sum(divided),
        text_encoders=sum(encoders),
        offloaded=offloaded,
        vae=measured.vae_bytes,
        asleep=pinned_bytes([*encoders, *model.transformers * divided, *measured.vae]),
        passes=measured.passes,
        kept=measured.kept,
        batch=batch,
    )


def _run_passes(
    config: DictConfig, model: ModelShapes, sample: Mapping[str, Tensor], batch: int, allocator: CachingAllocator | None
) -> PassMemory:
    """Run the passes of a batch. Reads only settings that are in `measure`'s cache key."""
    settings = config.actor_rollout_ref
    architecture = settings.model.architecture
    pipeline = settings.rollout.pipeline
    dtype = parse_dtype("rollout.dtype", settings.rollout.dtype)
    passes: dict[str, int] = {}
    shapes = sample_shapes(architecture)
    encoder_input = getattr(shapes, "encoder_input", None)  # only families with input images have it
    encoders, passes[TEXT_ENCODING] = encode_texts(config, model, dtype, batch, allocator)
    transformer = model.as_fake(_with_own_buffers(model.on_meta(TRANSFORMER, dtype)))
    passes["denoising"] = _denoising(config, model, transformer, sample, batch, allocator)
    vae: Any = model.as_fake(model.on_meta(VAE, dtype))
    if pipeline.output_type != "latent":
        latents = model.empty(batch, *shapes.decoder_input(model.configs, pipeline), dtype=dtype)
        passes["decoding"] = peak_of(vae, lambda: vae.decode(latents, return_dict=False), allocator)
    if encoder_input:
        pixels = model.empty(batch, *encoder_input(model.configs, pipeline), dtype=dtype)
        passes["image encoding"] = peak_of(vae, lambda: vae.encode(pixels, return_dict=False), allocator)
    kept = 0 if allocator is None else allocator.reserved
    tensors = _tensors(vae)
    return PassMemory(
        encoders, _named_sizes(transformer), [tensor.nbytes for tensor in tensors], tensor_bytes(tensors), passes, kept
    )


def encode_texts(
    config: DictConfig, model: ModelShapes, dtype: torch.dtype, batch: int, allocator: CachingAllocator | None
) -> tuple[list[int], int]:
    """Bytes of each tensor of the text encoders, and the peak of a pass of one of them beyond them.

    Args:
        batch: number of prompts.
    """
    rollout = config.actor_rollout_ref.rollout
    has_images = hasattr(sample_shapes(config.actor_rollout_ref.model.architecture), "encoder_input")
    longest = rollout.max_prompt_embed_length if has_images else rollout.pipeline.max_sequence_length
    sizes = list[int]()
    peak = 0
    for name in model.text_encoders:
        encoder: Any = model.as_fake(model.on_meta(name, dtype))
        if model.classes[name] == QWEN_VL and not has_images:
            del encoder.model.visual  # so does the engine: no prompt has images
        sizes += _sizes(encoder)
        kept = {"output_hidden_states": True} if model.classes[name] in ALL_HIDDEN_STATES else {}
        ids = torch.zeros(batch, _text_length(model.configs[name], longest), dtype=torch.int64)
        peak = max(peak, peak_of(encoder, partial(encoder, ids, **kept), allocator))
    return sizes, peak


def _denoising(
    config: DictConfig,
    model: ModelShapes,
    transformer: nn.Module,
    sample: Mapping[str, Tensor],
    batch: int,
    allocator: CachingAllocator | None,
) -> int:
    """One denoising step, with what the batch keeps meanwhile: latents, conditions and the recorded steps."""
    settings = config.actor_rollout_ref
    adapter = training_adapter(settings.model.architecture)
    shapes = sample_shapes(settings.model.architecture).sample(
        model.configs, settings.rollout.pipeline, settings.rollout.max_prompt_embed_length
    )
    rows = fake_rows(model, {"latents": shapes["latents"], **sample}, batch)
    latents = rows.pop("latents")
    time = torch.full((batch,), 500.0)
    dtype = parse_dtype("rollout.dtype", settings.rollout.dtype)
    # With guidance the engine runs the two prompts one after the other; the trainer runs them as one batch.
    step = lambda: adapter.velocity(transformer, rows, latents, time, 1.0, dtype=dtype)  # noqa: E731
    return peak_of(transformer, step, allocator) + tensor_bytes([latents, *rows.values()])


def _text_length(config: Mapping[str, Any], longest: int) -> int:
    """Tokens of a prompt in one text encoder."""
    positions = config.get("max_position_embeddings")
    return min(longest, positions) if positions else longest


def _with_own_buffers(transformer: nn.Module) -> nn.Module:
    """Give a transformer the buffers of vLLM-Omni's: position embeddings as they are computed, in float32."""
    for part in transformer.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.float()
    return transformer


def share(transformer: nn.Module, size: int) -> int:
    """Bytes of a transformer on each of `size` accelerators that share it."""
    return sum(_fused(_named_sizes(transformer), size))


def _named_sizes(module: nn.Module) -> list[tuple[str, int]]:
    return [(name, tensor.nbytes) for name, tensor in (*module.named_parameters(), *module.named_buffers())]


def _fused(tensors: Iterable[tuple[str, int]], size: int) -> list[int]:
    """Bytes of each tensor on one of `size` accelerators; vLLM-Omni joins the projections to query, key and value."""
    sizes: dict[str, int] = {}
    for name, nbytes in tensors:
        joined = QUERY_KEY_VALUE.sub(r".\1_qkv.", name)
        sizes[joined] = sizes.get(joined, 0) + math.ceil(nbytes / (size if DIVIDED.search(name) else 1))
    return list(sizes.values())


def pinned_bytes(sizes: Iterable[int]) -> int:
    """CPU memory for a copy of tensors of these sizes, made by vLLM's `CuMemAllocator`.

    It copies each segment of the device's allocator to memory that torch pins, in blocks whose sizes are powers of two
    (ATen/core/CachingHostAllocator.h).
    """
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return sum(1 << (segment - 1).bit_length() for segment in allocator.segments)


def peak_of(module: nn.Module, run: Any, allocator: CachingAllocator | None) -> int:
    """Peak of a pass without gradients, beyond the weights."""
    tracker = PeakTracker(allocator)
    module.eval()
    base = tracker.add(_tensors(module))
    with torch.no_grad(), tracker:
        run()
    return tracker.peak - base


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _sizes(module: nn.Module) -> list[int]:
    return [tensor.nbytes for tensor in {id(tensor): tensor for tensor in _tensors(module)}.values()]
