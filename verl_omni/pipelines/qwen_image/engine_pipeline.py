"""Qwen-Image in the vLLM-Omni engine: token-id prompts, batched requests, recorded SDE steps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.qwen_image.pipeline_qwen_image import QwenImagePipeline
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch

from verl_omni.pipelines.engine_requests import request_generator
from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.prompt_encoding import PromptEncoding
from verl_omni.pipelines.qwen_image.training import ids_problem
from verl_omni.pipelines.request_checks import check_request
from verl_omni.pipelines.sample_shapes import size_check
from verl_omni.pipelines.scheduler_config import received
from verl_omni.pipelines.stepwise import StepwiseSampling
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder, version_of
from verl_omni.utils.vllm_omni.client_errors import client_errors
from verl_omni.weight_sync.names import to_engine_adapter

__all__ = ["QwenImageRolloutPipeline", "get_post_process_func", "get_pre_process_func"]

ARCHITECTURE = "QwenImagePipeline"
STEPS = 50
Prompt = str | list[int]


def get_pre_process_func(od_config: Any) -> Callable[[Any], Any]:
    """Factory of the check of a request before it joins a batch: an invalid request would fail the whole batch."""
    size = size_check(ARCHITECTURE, Path(od_config.model))

    def pre_process(request: Any) -> Any:
        params = request.sampling_params
        with client_errors():
            check_request(params, size, steps=params.num_inference_steps or STEPS)
        return request

    return pre_process


class QwenImageRolloutPipeline(PromptEncoding, StepwiseSampling, QwenImagePipeline):
    """Upstream's pipeline with four additions.

    Prompts may be token ids: whole conversations in the model's chat template. A prompt without a negative prompt is
    guided away from the empty prompt. The steps in the SDE window of each request are recorded. The engine may run one
    step at a time (`rollout.step_execution`).

    Latents are packed: [B, patches, 4 C].
    """

    supports_request_batch = True
    # Parts of weight names: (in the engine, in checkpoints).
    checkpoint_names = ((".to_out.", ".to_out.0."),)

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        super().__init__(od_config=od_config, prefix=prefix)
        self._read_template()

    def _read_template(self) -> None:
        head, self._tail = self.prompt_template_encode.split("{}")
        # Upstream assumes the 34 tokens of the released tokenizer; other tokenizers have other numbers.
        self._head: list[int] = list(self.tokenizer(head).input_ids)

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        self._recorder = TrajectoryRecorder(
            req.sampling_params_list, self.device, steps=STEPS, dtype=self.od_config.dtype, version=version_of(self)
        )
        outputs = super().forward(req)
        if not req.is_dummy_run():
            self._recorder.attach(outputs, "image")
        return outputs

    @override
    def diffuse(
        self,
        prompt_embeds: Tensor,
        prompt_embeds_mask: Tensor,
        negative_prompt_embeds: Tensor | None,
        negative_prompt_embeds_mask: Tensor | None,
        latents: Tensor,
        img_shapes: list[list[tuple[int, int, int]]],
        txt_seq_lens: list[int],
        negative_txt_seq_lens: list[int] | None,
        timesteps: Tensor,
        do_true_cfg: bool,
        guidance: Tensor | None,
        true_cfg_scale: float,
        image_latents: Tensor | None = None,
        cfg_normalize: bool = True,
        additional_transformer_kwargs: dict[str, Any] | None = None,
    ) -> Tensor:
        self.transformer.do_true_cfg = do_true_cfg

        def velocity(x: Tensor, timestep: Tensor) -> Tensor:
            positive, negative, patches = self._build_denoise_kwargs(
                x,
                timestep,
                guidance,
                prompt_embeds,
                prompt_embeds_mask,
                img_shapes,
                txt_seq_lens,
                do_true_cfg,
                negative_prompt_embeds,
                negative_prompt_embeds_mask,
                negative_txt_seq_lens,
                image_latents,
                additional_transformer_kwargs,
            )
            predicted: Tensor = self.predict_noise_maybe_with_cfg(
                do_true_cfg, true_cfg_scale, positive, negative, cfg_normalize, patches
            )
            return predicted

        conditions = self.recorded_conditions(
            img_shapes,
            image_latents,
            prompt_embeds,
            prompt_embeds_mask,
            negative_prompt_embeds,
            negative_prompt_embeds_mask,
        )
        return self._recorder.denoise(
            velocity, latents, timesteps, self.scheduler.sigmas, conditions, received(timesteps, latents.dtype)
        )

    @override
    def _build_denoise_kwargs(self, latents: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Inputs of the transformer, which gets latents in its own dtype; the sampler's are float32."""
        return super()._build_denoise_kwargs(latents.to(self.od_config.dtype), *args, **kwargs)

    @override
    def prepare_encode(self, state: Any, **kwargs: Any) -> Any:
        """Encode the prompt, draw the initial noise and place the SDE window."""
        generator = request_generator(state.sampling, self.device)
        state = super().prepare_encode(state, **kwargs)
        # The engine pads the embeddings of a batch in place, so they are recorded before.
        conditions = self.recorded_conditions(
            state.img_shapes,
            None,
            state.prompt_embeds,
            state.prompt_embeds_mask,
            state.negative_prompt_embeds,
            state.negative_prompt_embeds_mask,
        )
        self.start_sampling(
            state,
            generator,
            received(state.timesteps, self.od_config.dtype),
            state.scheduler.sigmas,
            {name: rows[0][None] for name, rows in conditions.items()},
        )
        return state

    @override
    def post_decode(self, state: Any, **kwargs: Any) -> DiffusionOutput:
        """Output of a finished request, with its recorded fields."""
        state.latents = state.latents.to(self.od_config.dtype)
        output = super().post_decode(state, **kwargs)
        self.attach_record(state, output)
        return output

    def recorded_conditions(
        self,
        img_shapes: list[list[tuple[int, int, int]]],
        image_latents: Tensor | None,
        prompt_embeds: Tensor,
        prompt_embeds_mask: Tensor,
        negative_prompt_embeds: Tensor | None,
        negative_prompt_embeds_mask: Tensor | None,
    ) -> dict[str, Tensor | list[Tensor]]:
        """Inputs of the velocity besides latents and time, a row per request, by the names in `CONDITIONS`."""
        conditions: dict[str, Tensor | list[Tensor]] = {
            "img_shapes": torch.tensor(img_shapes if image_latents is not None else [row[0] for row in img_shapes]),
            **_unpadded("prompt_embeds", prompt_embeds, prompt_embeds_mask),
        }
        if negative_prompt_embeds is not None and negative_prompt_embeds_mask is not None:
            conditions |= _unpadded("negative_prompt_embeds", negative_prompt_embeds, negative_prompt_embeds_mask)
        if image_latents is not None:
            conditions["image_latents"] = image_latents
        return conditions

    @override
    def _extract_prompts(self, prompts: Sequence[Any]) -> tuple[list[Prompt], list[Prompt]]:
        """Prompts and negative prompts, each as token ids or text."""
        return (
            [_either(prompt, "prompt_token_ids", "prompt") for prompt in prompts],
            [_either({} if isinstance(p, str) else p, "negative_prompt_ids", "negative_prompt") for p in prompts],
        )

    @override
    def _get_qwen_prompt_embeds(
        self,
        prompt: Sequence[Prompt],
        dtype: torch.dtype | None = None,
        max_sequence_length: int | None = None,
        prompt_name: str = "prompt",
    ) -> tuple[Tensor, Tensor]:
        """Embeddings [B, L, D] and mask int64 [B, L] of the tokens after the system prompt, padded on the right.

        Raises:
            ValueError: token ids do not begin with the model's system prompt, or a prompt is too long.
        """
        limit = max_sequence_length or self.tokenizer_max_length
        conversations = [self._conversation(item) for item in prompt]
        for conversation in conversations:
            if problem := self._ids_problem(conversation, limit):
                raise ValueError(f"a {prompt_name} is refused: {problem}")
        embeds, mask = self._encode_conversations(conversations)
        # The text encoder keeps the dtype of its file.
        return embeds.to(dtype or self.od_config.dtype), mask

    def _encode_conversations(self, conversations: list[list[int]]) -> tuple[Tensor, ...]:
        return self.encode_prompts(conversations, self._encode, {"skipped_tokens": len(self._head)})

    def _encode(self, conversations: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Embeddings and mask as of `_get_qwen_prompt_embeds`, in the text encoder's dtype."""
        ids, inputs = self._with_images([torch.tensor(conversation) for conversation in conversations])
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).to(self.device)
        padded = pad_sequence(ids, batch_first=True, padding_value=self.tokenizer.pad_token_id).to(self.device)
        encoded = self.text_encoder(input_ids=padded, attention_mask=mask, output_hidden_states=True, **inputs)
        hidden = encoded.hidden_states[-1]
        kept = mask[:, len(self._head) :]
        return hidden[:, len(self._head) :] * kept.unsqueeze(-1), kept

    def _with_images(self, ids: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The ids of each prompt with a token for each part of its images, and the text encoder's inputs for them."""
        return ids, {}

    def _conversation(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return [*self._head, *self.tokenizer(prompt + self._tail).input_ids]
        return prompt

    def _ids_problem(self, ids: list[int], limit: int) -> str | None:
        return ids_problem(ids, self._head, limit)

    def map_lora_update_to_engine(
        self, tensors: dict[str, Tensor], peft_config: dict[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The adapter's tensors and PEFT settings under the engine's module names."""
        return to_engine_adapter(tensors, peft_config, self.checkpoint_names)


def _either(prompt: Any, ids: str, text: str) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    return list(prompt[ids]) if prompt.get(ids) is not None else prompt.get(text) or ""


def _unpadded(name: str, embeds: Tensor, mask: Tensor) -> dict[str, list[Tensor]]:
    lengths = mask.sum(dim=1).tolist()
    return {
        name: [row[:length] for row, length in zip(embeds, lengths, strict=True)],
        f"{name}_mask": [row[:length] for row, length in zip(mask, lengths, strict=True)],
    }
