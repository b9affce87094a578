"""A tiny HPSv3 with random weights, in the layout of the released files: a base model, and weights with a reward head.

NumPy makes the weights, so that they are the same with every version of torch and transformers.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
BYTES = 256
IDS = dict(zip(SPECIAL, range(BYTES, BYTES + len(SPECIAL)), strict=True))
TOKENS = BYTES + len(SPECIAL) + 1  # with <|Reward|>, the last
WIDTH = 16
LAYERS = 2
HEADS = 2
GROUPS = 1
INNER = 24
CELL = 14
HEAD = {"rm_head.0": (1024, WIDTH), "rm_head.3": (16, 1024), "rm_head.5": (2, 16)}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What a model of this kind is asked here. The package's wording belongs to the released weights.
BEFORE = "\nHow good is this picture?\nPrompt - {text_prompt}\n\n"
AFTER = "\nRating: <|Reward|>\n\nEND\n"


def write_base(folder: Path) -> None:
    """Configuration, tokenizer and processor of a Qwen2-VL, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / "config.json",
        {
            "architectures": ["Qwen2VLForConditionalGeneration"],
            "model_type": "qwen2_vl",
            "vocab_size": TOKENS + 7,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": GROUPS,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
            "use_cache": True,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "use_sliding_window": False,
            "bos_token_id": IDS["<|endoftext|>"],
            "eos_token_id": IDS["<|im_end|>"],
            "vision_start_token_id": IDS["<|vision_start|>"],
            "vision_end_token_id": IDS["<|vision_end|>"],
            "image_token_id": IDS["<|image_pad|>"],
            "video_token_id": IDS["<|video_pad|>"],
            "vision_config": {
                "depth": 2,
                "embed_dim": WIDTH,
                "hidden_size": WIDTH,
                "mlp_ratio": 2,
                "num_heads": 2,
                "in_chans": 3,
                "in_channels": 3,
                "patch_size": CELL,
                "spatial_patch_size": CELL,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "hidden_act": "quick_gelu",
                "model_type": "qwen2_vl",
            },
        },
    )
    _write(
        folder / "preprocessor_config.json",
        {
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": CELL,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
        },
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "vocab.json", {letter: number for number, letter in enumerate(letters)})
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    content = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "pad_token": SPECIAL[0],
            "eos_token": "<|im_end|>",
            "padding_side": "left",
            "additional_special_tokens": list(SPECIAL[1:]),
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": 4096,
            "added_tokens_decoder": {str(number): {"content": token, **content} for token, number in IDS.items()},
        },
    )
    _write(folder / "chat_template.json", {"chat_template": CHAT_TEMPLATE})


def make_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """All weights, fp32, with the names that the released file has."""
    shapes = {"model.embed_tokens.weight": (TOKENS, WIDTH), "model.norm.weight": (WIDTH,)}
    group = WIDTH // HEADS * GROUPS
    half = WIDTH // HEADS
    for layer in (f"model.layers.{number}." for number in range(LAYERS)):
        for name, rows in {"q_proj": half * HEADS, "k_proj": group, "v_proj": group}.items():
            shapes |= {f"{layer}self_attn.{name}.weight": (rows, WIDTH), f"{layer}self_attn.{name}.bias": (rows,)}
        shapes |= {
            f"{layer}self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{layer}input_layernorm.weight": (WIDTH,),
            f"{layer}post_attention_layernorm.weight": (WIDTH,),
            f"{layer}mlp.gate_proj.weight": (INNER, WIDTH),
            f"{layer}mlp.up_proj.weight": (INNER, WIDTH),
            f"{layer}mlp.down_proj.weight": (WIDTH, INNER),
        }
    shapes["visual.patch_embed.proj.weight"] = (WIDTH, 3, 2, CELL, CELL)
    linear = {"visual.merger.mlp.0": (4 * WIDTH, 4 * WIDTH), "visual.merger.mlp.2": (WIDTH, 4 * WIDTH), **HEAD}
    norms = ["visual.merger.ln_q"]
    for block in (f"visual.blocks.{number}." for number in range(2)):
        norms += [f"{block}norm1", f"{block}norm2"]
        linear |= {
            f"{block}attn.qkv": (3 * WIDTH, WIDTH),
            f"{block}attn.proj": (WIDTH, WIDTH),
            f"{block}mlp.fc1": (2 * WIDTH, WIDTH),
            f"{block}mlp.fc2": (WIDTH, 2 * WIDTH),
        }
    for name in norms:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes["lm_head.weight"] = (TOKENS, WIDTH)
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in sorted(shapes.items()):
        drawn = random.standard_normal(shape)
        # Norms are near 1. Other weights keep the size of their inputs, embeddings have size 1.
        scale = 1.0 if "embed_tokens" in name else 0.3 if len(shape) == 1 else np.prod(shape[1:]) ** -0.5 * 2
        is_norm = name.endswith("weight") and len(shape) == 1
        weights[name] = torch.from_numpy((drawn * scale + is_norm).astype(np.float32))
    return weights


def write_weights(path: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})


def write_package(folder: Path) -> Path:
    """A package hpsv3 of which only the question is there, in a folder for `sys.path`."""
    (folder / "hpsv3/dataset").mkdir(parents=True)
    (folder / "hpsv3/__init__.py").write_text("raise ImportError('its requirements are not installed')\n")
    texts = f"import trl\nINSTRUCTION = {BEFORE!r}\nprompt_with_special_token = {AFTER!r}\n"
    (folder / "hpsv3/dataset/data_collator_qwen.py").write_text(texts)
    return folder


def pictures() -> list[torch.Tensor]:
    """Images uint8 [3, H, W] of several sizes: smaller and larger than the model's, square, wide, and odd."""
    random = np.random.default_rng(1)
    sizes = [(32, 32), (512, 512), (96, 301), (700, 333)]
    return [torch.from_numpy(random.integers(0, 256, (3, *size), dtype=np.uint8)) for size in sizes]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
