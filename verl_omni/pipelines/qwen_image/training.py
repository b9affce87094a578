"""Qwen-Image for the trainer: velocity of a recorded step from the engine's embeddings."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from verl_omni.pipelines.guided_batch import guide, twice, with_padded_negative
from verl_omni.pipelines.registry import PromptCheck
from verl_omni.pipelines.scheduler_config import EULER

CONDITIONS = (
    "img_shapes",
    "prompt_embeds",
    "prompt_embeds_mask",
    "negative_prompt_embeds",
    "negative_prompt_embeds_mask",
)
LAYERS = ("transformer_blocks.",)
LORA_TARGETS = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
# The prompt template of diffusers' and the engine's pipelines; the tokenizer's own is a chat model's.
CHAT_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\n"
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MOST_TOKENS = 1024  # the limit of the engine's `max_sequence_length`
SCHEDULERS = (EULER,)
DYNAMIC_SHIFT = True
ENGINE_GUIDANCE = 4.0  # the engine's default


def guidance(pipeline: Any) -> float:
    """The guidance scale that the engine uses: `true_cfg_scale`, or its default."""
    return ENGINE_GUIDANCE if pipeline.true_cfg_scale is None else float(pipeline.true_cfg_scale)


def ids_problem(ids: Sequence[int], head: Sequence[int], limit: int) -> str | None:
    """Why the engine refuses the token ids of a prompt; None if it takes them.

    Args:
        head: ids of the template before the prompt: its system prompt. limit: the most ids after those.
    """
    if list(ids[: len(head)]) != list(head):
        return (
            f"its ids do not begin with Qwen-Image's system prompt ({len(head)} tokens): remove line breaks at its "
            "beginning, raise data.max_prompt_length, or check model.custom_chat_template and the row's system message"
        )
    if (count := len(ids) - len(head)) > limit:
        return f"it has {count} tokens, and max_sequence_length is {limit}"
    return None


def template_head(tokenizer: Any, template: str) -> list[int]:
    """Ids of a chat template before the user's prompt."""
    messages = [{"role": "user", "content": "\0"}]
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    return list(tokenizer(text.partition("\0")[0])["input_ids"])


def prompt_check(tokenizer: Any, max_sequence_length: int) -> PromptCheck:
    """See `registry.TrainingAdapter`."""
    head = template_head(tokenizer, CHAT_TEMPLATE)
    return lambda ids, text: ids_problem(ids, head, max_sequence_length)


def prompt_rows(max_sequence_length: int, tokenizer_length: int) -> int:
    """The engine refuses prompts with more tokens after the system prompt."""
    return max_sequence_length


def velocity(
    transformer: Any,
    batch: Mapping[str, Tensor],
    x: Tensor,
    timestep: Tensor,
    guidance_scale: float,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Predicted velocity, float32 in the shape of `x`, of packed latents `x` [B, patches, 4 C] at `timestep` [B].

    `batch["img_shapes"]` [B, 3]: frames (1), rows and columns of patches; [B, 2, 3] with an input image, whose
    patches `batch["image_latents"]` [B, patches, 4 C] follow the patches of `x`. With `guidance_scale` > 1 the
    prediction is guided, and rescaled at each patch to the norm of the unguided prediction, as in the engine.
    """
    embeds = batch["prompt_embeds"]
    mask = batch["prompt_embeds_mask"].to(torch.bool)
    shapes = [[tuple(shape) for shape in row] for row in batch["img_shapes"].reshape(len(x), -1, 3).tolist()]
    patches = x.shape[1]
    guided = guidance_scale > 1
    if "image_latents" in batch:
        x = torch.cat([x, batch["image_latents"].to(x.dtype)], dim=1)
    if guided:
        x = twice(x)
        timestep = twice(timestep)
        shapes = 2 * shapes
        embeds = with_padded_negative(batch, "prompt_embeds")
        mask = with_padded_negative(batch, "prompt_embeds_mask").to(torch.bool)
    longest = int(mask.sum(dim=1).max())  # padding beyond the longest prompt of this batch is cut
    embeds, mask = divisible_rows(embeds[:, :longest], mask[:, :longest], sequence_ranks(transformer))
    predicted: Tensor = transformer(
        hidden_states=x.to(dtype),
        timestep=(timestep / 1000).to(dtype),
        encoder_hidden_states=embeds.to(dtype),
        encoder_hidden_states_mask=mask,
        img_shapes=shapes,
        return_dict=False,
    )[0][:, :patches]
    if not guided:
        return predicted.float()
    guided_velocity, positive = guide(predicted.float(), guidance_scale)
    return guided_velocity * (positive.norm(dim=-1, keepdim=True) / guided_velocity.norm(dim=-1, keepdim=True))


def sequence_ranks(transformer: Any) -> int:
    """Ranks that share the sequence of a diffusers transformer (`ModelMixin.enable_parallelism`); 1: it is whole."""
    config = getattr(transformer, "_parallel_config", None)
    return 1 if config is None else int(config.context_parallel_config.ulysses_degree)


def divisible_rows(embeds: Tensor, mask: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Embeddings [B, R, D] and their mask, bool [B, R], with masked rows added until `ranks` divides R."""
    missing = -embeds.shape[1] % ranks
    return pad(embeds, (0, 0, 0, missing)), pad(mask, (0, missing))
