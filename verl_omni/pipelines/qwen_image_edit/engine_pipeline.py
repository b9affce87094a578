"""Qwen-Image-Edit in the vLLM-Omni engine: as Qwen-Image, with an input image for each prompt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.qwen_image.pipeline_qwen_image_edit_plus import QwenImageEditPlusPipeline
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch
from vllm_omni.errors import OmniClientError

from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.qwen_image.engine_pipeline import ARCHITECTURE, STEPS, Prompt, QwenImageRolloutPipeline
from verl_omni.pipelines.qwen_image_edit import images
from verl_omni.pipelines.qwen_image_edit.training import (
    PLACE,
    TEXT_TOKENS,
    QwenImageEditPlusTraining,
    QwenImageEditTraining,
    places_problem,
)
from verl_omni.pipelines.request_checks import check_request
from verl_omni.pipelines.sample_shapes import size_check
from verl_omni.utils.vllm_omni.client_errors import client_errors

__all__ = [
    "QwenImageEditPlusRolloutPipeline",
    "QwenImageEditRolloutPipeline",
    "get_post_process_func",
    "get_pre_process_func",
]

# keys of a prompt
INFORMATION = "additional_information"
PICTURE = "input_image"


def get_pre_process_func(od_config: Any) -> Callable[[Any], Any]:
    """Factory of the check of a request before it joins a batch: an invalid request would fail the whole batch.

    It reads the input image. A request without height or width gets the size of the input image's latents. Its token
    limit is at most the limit of a text prompt, because image tokens do not count.
    """
    model = Path(od_config.model)
    limit = images.limit(model)
    size = size_check(ARCHITECTURE, model)

    def pre_process(request: Any) -> Any:
        prompt: dict[str, Any] = {"prompt": request.prompt} if isinstance(request.prompt, str) else request.prompt
        picture = _only_image(prompt.get("multi_modal_data") or {})
        width, height = images.resized(picture.size, min(images.LATENT_PIXELS, limit))
        params = request.sampling_params
        params.width = params.width or width
        params.height = params.height or height
        params.num_inference_steps = params.num_inference_steps or STEPS
        params.max_sequence_length = min(params.max_sequence_length or TEXT_TOKENS, TEXT_TOKENS)
        with client_errors():
            check_request(params, size, steps=params.num_inference_steps)
        request.prompt = {**prompt, INFORMATION: {**(prompt.get(INFORMATION) or {}), PICTURE: picture}}
        return request

    return pre_process


def _only_image(media: Any) -> Image.Image:
    """The input image of a request, in RGB.

    Raises:
        OmniClientError: there is none, or something else.
    """
    image = media.get("image")
    listed = image if isinstance(image, list) else [image]
    if image is None or len(listed) != images.COUNT or media.keys() - {"image"}:
        raise OmniClientError(f"this model edits {images.COUNT} image: send it with the prompt, and nothing else")
    (picture,) = listed
    if isinstance(picture, str):
        picture = Image.open(picture)
    if not isinstance(picture, Image.Image):
        raise OmniClientError(f"the input image must be an image of PIL or its path, not {type(picture).__name__}")
    return picture.convert("RGB")


class QwenImageEditPlusRolloutPipeline(QwenImageRolloutPipeline, QwenImageEditPlusPipeline):
    """`QwenImageRolloutPipeline` with one input image per prompt.

    Token ids of a prompt have one `<|image_pad|>` for its image; the engine expands it to one per image token. A text
    prompt gets the image in front, as in upstream's template. The negative prompt gets the same image.
    """

    adapter: type[QwenImageEditTraining] = QwenImageEditPlusTraining
    caches_prompts = False  # embeddings depend on the images
    supports_step_execution = False  # `forward` groups requests by the shape of their images

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        # Skips the constructor of Qwen-Image, which drops the text encoder's vision tower.
        QwenImageEditPlusPipeline.__init__(self, od_config=od_config, prefix=prefix)
        self.parallel_config = od_config.parallel_config
        self._limit = images.limit(Path(od_config.model))
        self._resizer = VaeImageProcessor(vae_scale_factor=2 * self.vae_scale_factor, do_convert_rgb=True)
        self._read_template()

    @override
    def _read_template(self) -> None:
        super()._read_template()
        self._picture: list[int] = list(self.tokenizer(self.adapter.PICTURE).input_ids)
        self._place = int(self.tokenizer.convert_tokens_to_ids(PLACE))

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        """Generate; requests whose input images have latents of different shapes run one shape after the other."""
        pictures = [request.prompt[INFORMATION][PICTURE] for request in req.requests]
        sizes = [images.resized(picture.size, min(images.LATENT_PIXELS, self._limit)) for picture in pictures]
        output_of: dict[int, DiffusionOutput] = {}
        for size in dict.fromkeys(sizes):
            places = [index for index, candidate in enumerate(sizes) if candidate == size]
            self._pictures = [pictures[index] for index in places]
            self._size = size
            outputs = super().forward(DiffusionRequestBatch([req.requests[index] for index in places]))
            output_of |= dict(zip(places, outputs, strict=True))
        return [output_of[index] for index in range(len(sizes))]

    @override
    def _prepare_generation_context(self, **arguments: Any) -> dict[str, Any]:
        context: dict[str, Any] = super()._prepare_generation_context(**arguments)
        width, height = self._size
        factor = 2 * self.vae_scale_factor
        context["img_shapes"] = [[*row, (1, height // factor, width // factor)] for row in context["img_shapes"]]
        self._image_latents = self._encode_images().to(context["latents"].dtype)
        return context

    def _encode_images(self) -> Tensor:
        """Packed latents [B, patches, 4 C] of the input images."""
        width, height = self._size
        pixels = torch.cat([self._resizer.preprocess(image, height, width) for image in self._pictures]).unsqueeze(2)
        latents = self._encode_vae_image(pixels.to(self.device, self.vae.dtype), None)
        rows, channels, _, high, wide = latents.shape
        packed: Tensor = self._pack_latents(latents, rows, channels, high, wide)
        return packed

    @override
    def diffuse(self, *conditions: Any, **options: Any) -> Tensor:
        return super().diffuse(*conditions, **{**options, "image_latents": self._image_latents})

    @override
    def encode_prompt(
        self,
        prompt: list[Prompt],
        num_images_per_prompt: int = 1,
        prompt_embeds: Tensor | None = None,
        prompt_embeds_mask: Tensor | None = None,
        max_sequence_length: int = 1024,
        prompt_name: str = "prompt",
    ) -> tuple[Tensor, Tensor]:
        """Embeddings of a text and its image; `max_sequence_length` limits the text, and Qwen-Image's cuts both."""
        if prompt_embeds is None:
            prompt_embeds, prompt_embeds_mask = self._get_qwen_prompt_embeds(
                prompt, max_sequence_length=max_sequence_length, prompt_name=prompt_name
            )
        length = prompt_embeds.shape[1]
        encoded: tuple[Tensor, Tensor] = super().encode_prompt(
            prompt, num_images_per_prompt, prompt_embeds, prompt_embeds_mask, length, prompt_name
        )
        return encoded

    @override
    def _encode_conversations(self, conversations: list[list[int]]) -> tuple[Tensor, ...]:
        return self._encode(conversations)  # the same text may be of another image

    @override
    def _with_images(self, ids: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        size = [images.resized(picture.size, min(self.adapter.IMAGE_PIXELS, self._limit)) for picture in self._pictures]
        shown = [
            self._resizer.resize(picture, high, wide)
            for picture, (wide, high) in zip(self._pictures, size, strict=True)
        ]
        read = self.processor.image_processor(images=shown, return_tensors="pt")
        tokens = read["image_grid_thw"].prod(dim=1) // self.processor.image_processor.merge_size**2
        expanded = []
        for row, count in zip(ids, tokens.tolist(), strict=True):
            repeats = torch.where(row == self._place, count, 1)
            expanded.append(row.repeat_interleave(repeats))
        inputs = {"pixel_values": read["pixel_values"].to(self.device, self.text_encoder.dtype)}
        return expanded, {**inputs, "image_grid_thw": read["image_grid_thw"].to(self.device)}

    @override
    def _conversation(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return [*self._head, *self._picture, *self.tokenizer(prompt + self._tail).input_ids]
        return prompt

    @override
    def _ids_problem(self, ids: list[int], limit: int) -> str | None:
        return super()._ids_problem(ids, limit) or places_problem(ids, self._place)


class QwenImageEditRolloutPipeline(QwenImageEditPlusRolloutPipeline):
    """The same for Qwen-Image-Edit."""

    adapter = QwenImageEditTraining
