"""Tiny HPS v2 and ImageReward with random weights, under the names of the released files.

NumPy makes the weights, so that they are the same with every version of torch and transformers.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import BertTokenizer, CLIPConfig, CLIPImageProcessor

from verl_omni.models.text import clip_tokenizer

WORDS = ["a", "red", "blue", "circle", "square", "two"]
PROMPTS = ["a red circle", "a blue square", "two red circle", "a red square a red square a red square a red square"]
LENGTH = 10  # tokens of HPS v2's prompts
SIDE = 32
PATCH = 16
CELLS = (SIDE // PATCH) ** 2
WIDTH = 32  # of HPS v2
SHARED = 8  # width of its embeddings
LAYERS = 2
HEADS = 2
BLIP_WIDTH = 128  # of ImageReward: two heads in both encoders
BLIP_VISION = 64
BLIP_INNER = 48


def pictures() -> list[torch.Tensor]:
    """Images uint8 [3, H, W]: of the model's size, large, wide and high."""
    random = np.random.default_rng(1)
    sizes = [(SIDE, SIDE), (64, 64), (40, 100), (90, 33)]
    coarse = [random.integers(0, 256, (3, height // 8, width // 8)) for height, width in sizes]
    return [
        torch.from_numpy(blocks.repeat(8, 1).repeat(8, 2).astype(np.uint8))  # of blocks, so that resizing keeps them
        for blocks in coarse
    ]


def write_hpsv2(folder: Path) -> None:
    """`HPS_v2.1_compressed.pt`, and in `base` configuration, tokenizer and processor, without weights."""
    tokenizer = clip_tokenizer(WORDS, LENGTH)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "hidden_act": "gelu",
    }
    config = CLIPConfig(
        text_config={**sizes, **special, "vocab_size": len(tokenizer), "max_position_embeddings": LENGTH},
        vision_config={**sizes, "image_size": SIDE, "patch_size": PATCH},
        projection_dim=SHARED,
    )
    config.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    size = {"height": SIDE, "width": SIDE}
    CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder / "base")
    torch.save({"state_dict": hpsv2_weights(len(tokenizer))}, folder / "HPS_v2.1_compressed.pt")


def hpsv2_weights(tokens: int) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "visual.class_embedding": (WIDTH,),
        "visual.positional_embedding": (CELLS + 1, WIDTH),
        "visual.conv1.weight": (WIDTH, 3, PATCH, PATCH),
        "visual.proj": (WIDTH, SHARED),
        "text_projection": (WIDTH, SHARED),
        "token_embedding.weight": (tokens, WIDTH),
        "positional_embedding": (LENGTH, WIDTH),
        "logit_scale": (),
    }
    norms = ["visual.ln_pre", "visual.ln_post", "ln_final"]
    for block in (f"{tower}transformer.resblocks.{layer}." for tower in ("", "visual.") for layer in range(LAYERS)):
        norms += [f"{block}ln_1", f"{block}ln_2"]
        linear = {"attn.out_proj": (WIDTH, WIDTH), "mlp.c_fc": (4 * WIDTH, WIDTH), "mlp.c_proj": (WIDTH, 4 * WIDTH)}
        for name, shape in linear.items():
            shapes |= {f"{block}{name}.weight": shape, f"{block}{name}.bias": shape[:1]}
        shapes |= {f"{block}attn.in_proj_weight": (3 * WIDTH, WIDTH), f"{block}attn.in_proj_bias": (3 * WIDTH,)}
    shapes |= {f"{norm}.{part}": (WIDTH,) for norm in norms for part in ("weight", "bias")}
    return _random(shapes)


def write_image_reward(folder: Path) -> None:
    """`ImageReward.pt`, and in `base` the tokenizer."""
    (folder / "base").mkdir(parents=True, exist_ok=True)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "base/vocab.txt").write_text("\n".join(tokens) + "\n")
    BertTokenizer(str(folder / "base/vocab.txt")).save_pretrained(folder / "base")
    (folder / "base/vocab.txt").write_text("\n".join(tokens) + "\n")
    torch.save(image_reward_weights(len(tokens)), folder / "ImageReward.pt")


def image_reward_weights(tokens: int) -> dict[str, torch.Tensor]:
    vision = "blip.visual_encoder."
    text = "blip.text_encoder."
    shapes: dict[str, tuple[int, ...]] = {
        f"{vision}cls_token": (1, 1, BLIP_VISION),
        f"{vision}pos_embed": (1, CELLS + 1, BLIP_VISION),
        f"{vision}patch_embed.proj.weight": (BLIP_VISION, 3, PATCH, PATCH),
        f"{vision}patch_embed.proj.bias": (BLIP_VISION,),
        f"{text}embeddings.word_embeddings.weight": (tokens, BLIP_WIDTH),
        f"{text}embeddings.position_embeddings.weight": (64, BLIP_WIDTH),
    }
    norms = {f"{vision}norm": BLIP_VISION, f"{text}embeddings.LayerNorm": BLIP_WIDTH}
    linear = {"mlp.layers.0": (1024, BLIP_WIDTH), "mlp.layers.2": (128, 1024), "mlp.layers.4": (64, 128)}
    linear |= {"mlp.layers.6": (16, 64), "mlp.layers.7": (1, 16)}
    for layer in range(LAYERS):
        block = f"{vision}blocks.{layer}."
        norms |= {f"{block}norm1": BLIP_VISION, f"{block}norm2": BLIP_VISION}
        linear |= {
            f"{block}attn.qkv": (3 * BLIP_VISION, BLIP_VISION),
            f"{block}attn.proj": (BLIP_VISION, BLIP_VISION),
            f"{block}mlp.fc1": (4 * BLIP_VISION, BLIP_VISION),
            f"{block}mlp.fc2": (BLIP_VISION, 4 * BLIP_VISION),
        }
        block = f"{text}encoder.layer.{layer}."
        for kind, source in (("attention", BLIP_WIDTH), ("crossattention", BLIP_VISION)):
            norms[f"{block}{kind}.output.LayerNorm"] = BLIP_WIDTH
            linear |= {
                f"{block}{kind}.self.query": (BLIP_WIDTH, BLIP_WIDTH),
                f"{block}{kind}.self.key": (BLIP_WIDTH, source),
                f"{block}{kind}.self.value": (BLIP_WIDTH, source),
                f"{block}{kind}.output.dense": (BLIP_WIDTH, BLIP_WIDTH),
            }
        norms[f"{block}output.LayerNorm"] = BLIP_WIDTH
        linear |= {
            f"{block}intermediate.dense": (BLIP_INNER, BLIP_WIDTH),
            f"{block}output.dense": (BLIP_WIDTH, BLIP_INNER),
        }
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, width in norms.items():
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return _random(shapes)


def _random(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Weights of norms near 1, other weights that keep the size of their inputs."""
    random = np.random.default_rng(0)
    weights = {}
    for name, shape in sorted(shapes.items()):
        is_norm = len(shape) == 1 and name.endswith("weight")
        scale = 0.3 if len(shape) < 2 else np.prod(shape[1:]) ** -0.5 * 1.5
        weights[name] = torch.from_numpy(np.asarray(random.standard_normal(shape) * scale + is_norm, dtype=np.float32))
    return weights
