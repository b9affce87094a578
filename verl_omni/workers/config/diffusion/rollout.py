"""Typed settings of the rollout: `actor_rollout_ref.rollout`.

Fields without an explanation here are explained in `trainer/config/diffusion_trainer.yaml`.
"""

from dataclasses import dataclass, field
from typing import Any

from verl.base_config import BaseConfig
from verl.workers.config import RolloutConfig

from verl_omni.algos.sde_settings import SdeSettings
from verl_omni.settings_schema import engine_settings
from verl_omni.workers.config.diffusion import reference_fields
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE, with_defaults

ROLLOUT = "actor_rollout_ref.rollout"
ROLLOUT_ADAPTERS = ("default", "old")


@dataclass
@with_defaults("actor_rollout_ref.rollout.pipeline")
class DiffusionPipelineConfig(BaseConfig):
    """Settings of one request to the diffusion pipeline.

    Attributes:
        height, width: size of a sample in pixels.
        num_inference_steps: number of denoising steps.
        true_cfg_scale, guidance_scale: scale of classifier-free guidance, 1.0: none; a family uses one of the two.
        max_sequence_length: tokens of the longest text encoder; prompt embeddings are padded to it.
        num_frames: frames of a video; 1 for an image.
        aspect_ratio, frame_rate: the reference's; only their defaults, which no request carries.

    Raises:
        ValueError: a value of the reference's settings is not supported.
    """

    height: int = FROM_FILE
    width: int = FROM_FILE
    num_inference_steps: int = FROM_FILE
    true_cfg_scale: float = 1.0
    max_sequence_length: int = 512
    guidance_scale: float | None = None
    num_frames: int = FROM_FILE
    output_type: str = FROM_FILE
    pixel_dtype: str = FROM_FILE
    aspect_ratio: str | None = FROM_FILE
    frame_rate: float = FROM_FILE
    video_flow_shift: float | None = FROM_FILE

    def __post_init__(self) -> None:
        reference_fields.check(self, f"{ROLLOUT}.pipeline")


@dataclass
@with_defaults("actor_rollout_ref.rollout.algo")
class DiffusionRolloutAlgoConfig(BaseConfig):
    """SDE sampler: its noise, and the steps that are recorded.

    Attributes:
        noise_level: scale of the SDE's noise (`a` in Flow-GRPO, arXiv:2505.05470).
        sde_type: `sde`, `cps` or `dance_sde`.
        sde_window_size: number of steps with noise, which are recorded; None: all but the last.
        sde_window_range: steps [low, high) that the window lies in; None: all but the last, or [0, 5) with a size.
        clean_latents: return the final latents of training samples, for algorithms without a likelihood.

    Raises:
        ValueError: as of `SdeSettings.read`.
    """

    noise_level: float = 1.0
    sde_type: str = FROM_FILE
    sde_window_size: int | None = FROM_FILE
    sde_window_range: list[int] | None = FROM_FILE
    sample_strategy: str = FROM_FILE
    iters_per_group: int = FROM_FILE
    sde_window_seed: int | None = FROM_FILE
    sde_contiguous: bool = FROM_FILE
    init_same_noise: bool = FROM_FILE
    clean_latents: bool = False

    def __post_init__(self) -> None:
        SdeSettings.read(self)  # checks them


@dataclass
@with_defaults("actor_rollout_ref.rollout.val_kwargs")
class DiffusionSamplingConfig(BaseConfig):
    """Overrides for validation samples.

    Attributes:
        n: samples per prompt.
        seed: seed of rows without a `seed` column.
        pipeline, algo: settings that override the training settings.

    Raises:
        TypeError, ValueError: one of them is unknown, or its value is not supported.
    """

    n: int = FROM_FILE
    seed: int = FROM_FILE
    pipeline: dict[str, Any] = field(default_factory=dict)
    algo: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for values, kind in ((self.pipeline, DiffusionPipelineConfig), (self.algo, DiffusionRolloutAlgoConfig)):
            kind(**values)  # checks the names and the values


@dataclass
@with_defaults("actor_rollout_ref.rollout")
class DiffusionRolloutConfig(RolloutConfig):
    """verl's rollout settings, extended by settings of a diffusion engine.

    Attributes:
        seed: determines the noise of training samples; None: the run's seed (`trainer.seed`).
        rollout_attn_backend: attention backend of the pipeline, by vLLM-Omni's name, unless `engine_kwargs.vllm_omni`
            sets one.
        engine_kwargs: `vllm_omni` has settings of the engine's stage by name
            (`settings_schema/engine_settings.py`); afterwards only those that it is handed, in their types.
        step_execution: run one denoising step at a time, so that requests join and leave a batch between steps.
        rollout_adapter: policy that samples: `default`, the trained one, or `old`.
        external_lib: module to import in the server's process before the engine starts.
        max_prompt_embed_length: rows that prompt embeddings are padded to; None: `pipeline.max_sequence_length`.
        max_concurrent_requests: upper limit of the samples that one agent-loop worker has in generation; those that are
            being scored do not count. None only until the trainer has derived it (`process_counts.py`).
        llm_calculate_log_probs, max_new_tokens: the reference's; without effect.

    Raises:
        ValueError: `mode` is `sync`, `rollout_adapter` is unknown, a number is out of range,
            `offload_text_encoders` is set without `prompt_cache_dir`, or a setting of the engine is unknown or not
            supported.
        NotImplementedError: pipeline parallelism is requested.
    """

    _mutable_fields = RolloutConfig._mutable_fields | {
        "max_model_len",
        "load_format",
        "engine_kwargs",
        "prompt_length",
        "expert_parallel_size",
    }

    name: str | None = FROM_FILE
    seed: int | None = None  # type: ignore[assignment]
    rollout_attn_backend: str = "FLASH_ATTN"
    step_execution: bool = FROM_FILE
    prompt_cache_dir: str | None = FROM_FILE
    offload_text_encoders: bool = FROM_FILE
    rollout_adapter: str = "default"
    external_lib: str | None = FROM_FILE
    max_prompt_embed_length: int | None = FROM_FILE
    max_concurrent_requests: int | None = 256
    deadline_seconds: float = FROM_FILE
    node_resource: str | None = FROM_FILE
    ray_resource: str | None = FROM_FILE
    min_replicas: int | None = FROM_FILE
    llm_calculate_log_probs: bool = False
    max_new_tokens: int = 256
    pipeline: DiffusionPipelineConfig = field(default_factory=DiffusionPipelineConfig)
    algo: DiffusionRolloutAlgoConfig = field(default_factory=DiffusionRolloutAlgoConfig)
    val_kwargs: DiffusionSamplingConfig = field(default_factory=DiffusionSamplingConfig)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, kind in _GROUPS.items():
            object.__setattr__(self, name, reference_fields.typed(getattr(self, name), kind))
        engine = reference_fields.plain((self.engine_kwargs or {}).get("vllm_omni")) or {}
        if engine.get("output_mode") != "ar":  # whose engine has these settings
            reference_fields.check(self, ROLLOUT)
            self._read_engine(engine)
        if self.mode == "sync":
            raise ValueError("Rollout mode 'sync' is not supported: a diffusion rollout is always 'async'")
        if self.rollout_adapter not in ROLLOUT_ADAPTERS:
            raise ValueError(
                f"Invalid diffusion rollout rollout_adapter: {self.rollout_adapter!r}; one of {ROLLOUT_ADAPTERS}"
            )
        if self.offload_text_encoders and not self.prompt_cache_dir:
            raise ValueError(
                f"{ROLLOUT}.offload_text_encoders: every batch would move the text encoders to the accelerator; "
                f"also set {ROLLOUT}.prompt_cache_dir"
            )
        if self.pipeline_model_parallel_size > 1 and self.name == "vllm_omni":
            raise NotImplementedError(
                "vLLM-Omni diffusion has no pipeline parallelism: pipeline_model_parallel_size must be 1"
            )

    def _read_engine(self, given: dict[str, Any]) -> None:
        """Keep the engine's settings that it is handed."""
        arguments, problems = engine_settings.read(given)
        if problems:
            raise ValueError("\n".join(problems))
        if given:
            object.__setattr__(self, "engine_kwargs", {**self.engine_kwargs, "vllm_omni": arguments})


_GROUPS: dict[str, type[Any]] = {
    "pipeline": DiffusionPipelineConfig,
    "algo": DiffusionRolloutAlgoConfig,
    "val_kwargs": DiffusionSamplingConfig,
}
