"""A tiny random vision-language model in Qwen3-VL's layout, with tokenizer, processor and chat template, offline."""

from pathlib import Path

import torch
from transformers import (
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from verl_omni.models import text
from verl_omni.models.saving import save

PATCH = 16
MERGED = 2
WIDTH = 32
WORDS = tuple("0 1 2 3 4 5 Final Score a all answer exactly image in is of text the this visible with".split())  # noqa: SIM905
# Qwen's format of turns; an image is one token, which the processor repeats for each of its patches.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_qwen3_vl(path: Path, seed: int = 0) -> None:
    """Write the model: a vision tower of 2 layers and a language model of 2 layers, 80 thousand parameters.

    Its weights are large, so that the answer depends on the image and on the question.
    """
    tokenizer = text.qwen_tokenizer(WORDS, text.QWEN_VISION)
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": WIDTH // 2,
            "initializer_range": 0.3,
            "max_position_embeddings": 4096,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "patch_size": PATCH,
            "spatial_merge_size": MERGED,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
            "initializer_range": 0.3,
        },
        **text.vision_ids(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    model.get_input_embeddings().weight.data.normal_(0, 1, generator=torch.Generator().manual_seed(seed + 1))
    save(model.eval(), path)
    sizes = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": (32 * PATCH) ** 2}  # pixels of an image
    layout = {"patch_size": PATCH, "merge_size": MERGED, "temporal_patch_size": 2, "size": sizes}
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessor(**layout), tokenizer, Qwen3VLVideoProcessor(**layout), chat_template=CHAT_TEMPLATE
    )
    processor.save_pretrained(path)
