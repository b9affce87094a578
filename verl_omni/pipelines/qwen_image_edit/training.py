"""Qwen-Image-Edit for the trainer: Qwen-Image with the latents of an input image after the sample's latents."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.qwen_image import training as qwen_image
from verl_omni.pipelines.qwen_image_edit import images
from verl_omni.pipelines.registry import PromptCheck

START = "<|vision_start|>"
PLACE = "<|image_pad|>"
END = "<|vision_end|>"
SYSTEM = (
    "Describe the key features of the input image (color, shape, size, texture, objects, background), then explain "
    "how the user's text instruction should alter or modify the image. Generate a new image that meets the user's "
    "requirements while maintaining consistency with the original input where appropriate."
)
# The engine's limit of a prompt's text; tokens of the image do not count. Recipes set `max_sequence_length` above it,
# for a text and its image together.
TEXT_TOKENS = 1024


def chat_template(picture: str) -> str:
    """Jinja template of upstream's prompts; `picture` stands for an image."""
    return (
        "{% if messages[0].role != 'system' %}<|im_start|>system\n" + SYSTEM + "<|im_end|>\n"
        "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        "{% if part.type == 'image' %}" + picture + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def places_problem(ids: Sequence[int], place: int) -> str | None:
    """Why the engine refuses the token ids of a prompt with its image; None if it takes them.

    Args:
        place: id that stands for an image.
    """
    if (places := list(ids).count(place)) == images.COUNT:
        return None
    return f"its ids have {places} places for images ({PLACE}), and it has {images.COUNT} image"


class QwenImageEditTraining:
    """`TrainingAdapter` of Qwen-Image-Edit.

    Attributes:
        PICTURE: text of an input image in a prompt.
        IMAGE_PIXELS: pixels of the input image that the text encoder sees.
        IMAGE_ROWS: upper bound of the rows of its embeddings, of 28 x 28 pixels each, whatever its aspect ratio.
    """

    CONDITIONS = (*qwen_image.CONDITIONS, "image_latents")
    LAYERS = qwen_image.LAYERS
    LORA_TARGETS = qwen_image.LORA_TARGETS
    SCHEDULERS = qwen_image.SCHEDULERS
    DYNAMIC_SHIFT = qwen_image.DYNAMIC_SHIFT
    PICTURE = START + PLACE + END
    IMAGE_PIXELS = 1024 * 1024
    IMAGE_ROWS = 1536
    CHAT_TEMPLATE = chat_template(PICTURE)

    def guidance(self, pipeline: Any) -> float:
        """See `qwen_image.training`."""
        return qwen_image.guidance(pipeline)

    def prompt_rows(self, max_sequence_length: int, tokenizer_length: int) -> int:
        """`max_sequence_length` limits the text, to at most `TEXT_TOKENS`."""
        return min(max_sequence_length, TEXT_TOKENS) + self.IMAGE_ROWS

    def prompt_check(self, tokenizer: Any, max_sequence_length: int) -> PromptCheck:
        """See `registry.TrainingAdapter`."""
        head = qwen_image.template_head(tokenizer, self.CHAT_TEMPLATE)
        place_id = int(tokenizer.convert_tokens_to_ids(PLACE))
        limit = min(max_sequence_length, TEXT_TOKENS)

        def check(ids: Sequence[int], text: str) -> str | None:
            return qwen_image.ids_problem(ids, head, limit) or places_problem(ids, place_id)

        return check

    def velocity(
        self,
        transformer: Any,
        batch: Mapping[str, Tensor],
        x: Tensor,
        timestep: Tensor,
        guidance_scale: float,
        *,
        dtype: torch.dtype,
    ) -> Tensor:
        """See `qwen_image.training`; `batch["img_shapes"]` [B, 2, 3] has the sample's shape and the input image's."""
        return qwen_image.velocity(transformer, batch, x, timestep, guidance_scale, dtype=dtype)


class QwenImageEditPlusTraining(QwenImageEditTraining):
    """`TrainingAdapter` of Qwen-Image-Edit-Plus (2509, 2511): a smaller input image for the text encoder."""

    PICTURE = "Picture 1: " + QwenImageEditTraining.PICTURE
    IMAGE_PIXELS = 384 * 384
    IMAGE_ROWS = 256
    CHAT_TEMPLATE = chat_template(PICTURE)
