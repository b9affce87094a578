"""Typed settings of the rollout: `actor_rollout_ref.rollout`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from verl.base_config import BaseConfig
from verl.workers.config import RolloutConfig

from verl_omni.algos.sde import SDE_TYPES

ROLLOUT_ADAPTERS = ("default", "old")
SAMPLE_STRATEGIES = ("random", "progressive")
REPLICA_DEADLINE_SECONDS = 1800.0


@dataclass
class DiffusionPipelineConfig(BaseConfig):
    """What one request asks of the diffusion pipeline.

    Attributes:
        height, width: pixels.
        num_inference_steps: denoising steps.
        true_cfg_scale, guidance_scale: classifier-free guidance; 1.0 and None mean none.
        max_sequence_length: tokens of the longest text encoder; prompt embeddings are padded to it.
        num_frames: 1 for an image.
        output_type: `image` (pixels) or `latent`.
        pixel_dtype: of a sample's pixels: `uint8` (0 to 255) or `float32` (0 to 1).
    """

    height: int = 512
    width: int = 512
    num_inference_steps: int = 10
    true_cfg_scale: float = 1.0
    max_sequence_length: int = 512
    guidance_scale: float | None = None
    num_frames: int = 1
    output_type: Literal["image", "latent"] = "image"
    pixel_dtype: Literal["uint8", "float32"] = "uint8"


@dataclass
class DiffusionRolloutAlgoConfig(BaseConfig):
    """How noise enters the sampler, and which steps are recorded.

    Attributes:
        noise_level: scale of the SDE's noise (`a` in Flow-GRPO, arXiv:2505.05470).
        sde_type: `sde`, `cps` or `dance_sde`.
        sde_window_size: recorded steps; None records every step but the last.
        sde_window_range: [low, high) of the window's possible places.
        sample_strategy: `random` draws the window's start for each request, `progressive` moves it.
        iters_per_group: training steps for which a progressive window stays; > 0.
        sde_window_seed: seed of the random window's start.
        clean_latents: return the final latents of training samples, for algorithms without a likelihood.
    """

    noise_level: float = 1.0
    sde_type: str = "sde"
    sde_window_size: int | None = None
    sde_window_range: list[int] | None = None
    sample_strategy: str = "random"
    iters_per_group: int = 25
    sde_window_seed: int = 0
    clean_latents: bool = False

    def __post_init__(self) -> None:
        if self.sample_strategy not in SAMPLE_STRATEGIES:
            raise ValueError(f"Unknown sample_strategy: {self.sample_strategy!r}; one of {SAMPLE_STRATEGIES}")
        if self.sample_strategy == "progressive" and self.iters_per_group <= 0:
            raise ValueError(
                f"iters_per_group must be positive when sample_strategy is progressive: {self.iters_per_group}"
            )
        if self.sde_type not in SDE_TYPES:
            raise ValueError(f"Unknown sde_type: {self.sde_type!r}; one of {SDE_TYPES}")


@dataclass
class DiffusionSamplingConfig(BaseConfig):
    """Overrides for validation: fixed seeds, usually no noise."""

    n: int = 1
    seed: int = 42
    pipeline: dict[str, Any] = field(default_factory=dict)
    algo: dict[str, Any] = field(default_factory=dict)


@dataclass
class DiffusionRolloutConfig(RolloutConfig):
    """verl's rollout settings with those of a diffusion engine.

    Attributes:
        rollout_attn_backend: vLLM-Omni's name of the pipeline's attention, unless `engine_kwargs.vllm_omni` has one.
        deadline_seconds: how long a replica may answer nothing of what it was asked before it is given up. It must
            exceed the time for one batch of the engine; weight updates have a deadline of their own
            (`checkpoint_engine.engine_kwargs.naive.deadline_seconds`).

    Raises:
        ValueError: `mode` is not `async`, `rollout_adapter` is unknown, or `deadline_seconds` is not positive.
        NotImplementedError: pipeline parallelism is asked of vLLM-Omni.
    """

    _mutable_fields = RolloutConfig._mutable_fields | {
        "max_model_len", "load_format", "engine_kwargs", "prompt_length", "expert_parallel_size",
    }  # fmt: skip

    name: str | None = "vllm_omni"
    seed: int | None = None  # type: ignore[assignment]
    rollout_attn_backend: str = "FLASH_ATTN"
    step_execution: bool = False
    rollout_adapter: str = "default"
    external_lib: str | None = None
    max_prompt_embed_length: int | None = None
    max_concurrent_requests: int = 256
    deadline_seconds: float = REPLICA_DEADLINE_SECONDS
    pipeline: DiffusionPipelineConfig = field(default_factory=DiffusionPipelineConfig)
    algo: DiffusionRolloutAlgoConfig = field(default_factory=DiffusionRolloutAlgoConfig)
    val_kwargs: DiffusionSamplingConfig = field(default_factory=DiffusionSamplingConfig)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.mode == "sync":
            raise ValueError("Rollout mode 'sync' is not supported: a diffusion rollout is always 'async'")
        if self.rollout_adapter not in ROLLOUT_ADAPTERS:
            raise ValueError(
                f"Invalid diffusion rollout rollout_adapter: {self.rollout_adapter!r}; one of {ROLLOUT_ADAPTERS}"
            )
        if self.deadline_seconds <= 0:
            raise ValueError(f"deadline_seconds must be positive: {self.deadline_seconds}")
        if self.pipeline_model_parallel_size > 1 and self.name == "vllm_omni":
            raise NotImplementedError(
                "vLLM-Omni diffusion has no pipeline parallelism: pipeline_model_parallel_size must be 1"
            )
