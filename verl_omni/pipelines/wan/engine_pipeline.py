"""Wan, text to video, in the vLLM-Omni engine: token-id prompts, batched requests, recorded SDE steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.wan2_2.pipeline_wan2_2 import Wan22Pipeline, get_wan22_pre_process_func
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch
from vllm_omni.errors import OmniClientError

from verl_omni.pipelines.engine_requests import decode_token_ids
from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.prompt_encoding import PromptEncoding
from verl_omni.pipelines.request_checks import check_request
from verl_omni.pipelines.sample_shapes import size_check
from verl_omni.pipelines.scheduler_config import noise_levels, scheduler_config
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder, version_of
from verl_omni.pipelines.wan.training import DYNAMIC_SHIFT, SCHEDULERS
from verl_omni.utils.model_folder import boundary_ratio
from verl_omni.utils.vllm_omni.client_errors import client_errors
from verl_omni.weight_sync.names import to_engine_adapter

__all__ = ["WanRolloutPipeline", "get_post_process_func", "get_pre_process_func"]

ARCHITECTURE = "WanPipeline"
STEPS = 40
OTHER_PROMPTS = ("prompt_token_ids", "prompt_embeds")  # a request's, instead of text
ONE_TRANSFORMER = 0.0  # share of the noise levels that a second transformer computes


def get_pre_process_func(od_config: Any) -> Callable[[Any], Any]:
    """Factory of the check of a request before it joins a batch: an invalid request would fail the whole batch."""
    upstream = get_wan22_pre_process_func(od_config)
    size = size_check(ARCHITECTURE, Path(od_config.model))

    def pre_process(request: Any) -> Any:
        params = request.sampling_params
        prompt = {"prompt": request.prompt} if isinstance(request.prompt, str) else request.prompt
        if not prompt.get("prompt") and all(prompt.get(name) is None for name in OTHER_PROMPTS):
            raise OmniClientError("the prompt is empty, and Wan needs one")
        with client_errors():
            check_request(params, size, steps=params.num_inference_steps or STEPS)
        return upstream(request)

    return pre_process


class WanRolloutPipeline(PromptEncoding, Wan22Pipeline):
    """Upstream's pipeline with four additions.

    Prompts may be token ids. Noise levels come from the model's scheduler; `flow_shift` of the request or the engine
    overrides its shift (upstream uses a shift of 5 for every model). The solver is Euler's, whose steps have a
    density. The steps in the SDE window of each request are recorded.

    Latents are [B, C, frames, h, w]. With two transformers, the model's `boundary_ratio` selects the one for a step.

    Raises:
        ValueError: the engine was started with another `boundary_ratio` than the model's, or its scheduler is not
            supported.
    """

    supports_request_batch = True
    # Parts of weight names: (in the engine, in checkpoints).
    checkpoint_names = (
        (".to_out.", ".to_out.0."),
        (".ffn.net_0.", ".ffn.net.0."),
        (".ffn.net_2.", ".ffn.net.2."),
        (".transformer.output_scale_shift_prepare.scale_shift_table.", ".transformer.scale_shift_table."),
        (".transformer_2.output_scale_shift_prepare.scale_shift_table.", ".transformer_2.scale_shift_table."),
    )

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        ratio = boundary_ratio(Path(od_config.model))
        if od_config.boundary_ratio not in (None, ratio):
            raise ValueError(f"boundary_ratio={od_config.boundary_ratio} of the engine is not {ratio}, the model's")
        super().__init__(od_config=od_config, prefix=prefix)
        self.boundary_ratio = ONE_TRANSFORMER if ratio is None else ratio
        self._scheduler_config = scheduler_config(Path(od_config.model), SCHEDULERS, dynamic=DYNAMIC_SHIFT)

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        for request in req.requests:
            request.prompt = decode_token_ids(request.prompt, self.tokenizer)
            params = request.sampling_params
            params.extra_args = {**(params.extra_args or {}), "sample_solver": "euler"}
        shift = req.sampling_params_list[0].extra_args.get("flow_shift")  # requests of one batch have the same
        self._shift = self.od_config.flow_shift if shift is None else float(shift)
        self._recorder = TrajectoryRecorder(
            req.sampling_params_list, self.device, steps=STEPS, dtype=self.od_config.dtype, version=version_of(self)
        )
        outputs = super().forward(req)
        for output in outputs:
            if output.media is not None:  # upstream's video, in [-1, 1], which cannot be sent with recorded fields
                output.output, output.media = output.media.video.tensor, None
        if not req.is_dummy_run():
            self._recorder.attach(outputs, "video")
        return outputs

    @override
    def encode_prompt(
        self,
        prompt: list[str],
        negative_prompt: str | list[str] | None = None,
        do_classifier_free_guidance: bool = True,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Embeddings [B, L, D] of prompts and negative prompts, which are encoded in the same way."""
        encode = super().encode_prompt

        def encode_texts(texts: list[str]) -> tuple[Tensor, ...]:
            return (encode(texts, None, False, **options)[0],)

        read = {**options, "device": None, "dtype": str(options.get("dtype"))}
        (embeds,) = self.encode_prompts(prompt, encode_texts, read)
        if not do_classifier_free_guidance:
            return embeds, None
        negative = negative_prompt or ""
        texts = [negative] * len(prompt) if isinstance(negative, str) else negative
        return embeds, self.encode_prompts(texts, encode_texts, read)[0]

    @override
    def diffuse(
        self,
        latents: Tensor,
        timesteps: Tensor,
        prompt_embeds: Tensor,
        negative_prompt_embeds: Tensor | None,
        guidance_low: float,
        guidance_high: float,
        boundary_timestep: float | None,
        dtype: torch.dtype,
        attention_kwargs: dict[str, Any],
        latent_condition: Tensor | None = None,
        first_frame_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if latent_condition is not None:
            raise ValueError("Wan is trained from text to video: send the prompt without an image")
        timesteps, sigmas = noise_levels(self._scheduler_config, len(timesteps), self._shift)
        timesteps = timesteps.to(latents.device)

        def velocity(x: Tensor, timestep: Tensor) -> Tensor:
            low_noise = self.transformer_2 is not None and timestep < boundary_timestep
            scale = guidance_high if low_noise else guidance_low  # upstream's names
            guided = scale > 1 and negative_prompt_embeds is not None
            common = {
                "hidden_states": x.to(dtype),
                "timestep": timestep.expand(x.shape[0]),
                "attention_kwargs": attention_kwargs,
                "return_dict": False,
                "current_model": self.transformer_2 if low_noise else self.transformer,
            }
            positive = {**common, "encoder_hidden_states": prompt_embeds}
            negative = {**common, "encoder_hidden_states": negative_prompt_embeds} if guided else None
            predicted: Tensor = self.predict_noise_maybe_with_cfg(
                guided, scale, positive, negative, cfg_normalize=False
            )
            return predicted

        conditions = {
            "prompt_embeds": prompt_embeds,
            "negative_prompt_embeds": negative_prompt_embeds if max(guidance_low, guidance_high) > 1 else None,
        }
        return self._recorder.denoise(velocity, latents, timesteps, sigmas, conditions)

    def map_lora_update_to_engine(
        self, tensors: dict[str, Tensor], peft_config: dict[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The adapter's tensors and PEFT settings under the engine's module names."""
        return to_engine_adapter(tensors, peft_config, self.checkpoint_names)
