"""Tokenizers built from a list of words, and frozen random text encoders; no download."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

START = "<|startoftext|>"
END = "<|endoftext|>"
QWEN_END = "<|endoftext|>"
QWEN_TURNS = ("<|im_start|>", "<|im_end|>")
QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VISION_IDS = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")


def clip_tokenizer(words: Sequence[str], length: int) -> CLIPTokenizer:
    """A byte-pair tokenizer with one token per word."""
    tokenizer = Tokenizer(models.BPE(unk_token=END, end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    # Without these special tokens, the trainer numbers final letters in the order of a hash table, which is not
    # deterministic.
    endings = sorted({f"{word[-1]}</w>" for word in words})
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        min_frequency=1,
        end_of_word_suffix="</w>",
        special_tokens=[START, END, *endings],
        show_progress=False,
    )
    tokenizer.train_from_iterator(words, trainer)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.model.save(folder)
        return CLIPTokenizer(
            vocab=str(Path(folder) / "vocab.json"), merges=str(Path(folder) / "merges.txt"), model_max_length=length
        )


def t5_tokenizer(words: Sequence[str], length: int) -> T5Tokenizer:
    """A unigram tokenizer with one token per word."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -20.0)] + [(f"▁{word}", -3.0) for word in words]
    return T5Tokenizer(vocab=vocabulary, model_max_length=length, extra_ids=0)


@torch.no_grad()
def clip_encoder(tokenizer: Any, width: int, length: int, seed: int) -> CLIPTextModelWithProjection:
    """Encoder with two random layers; its position embeddings are large enough that word order matters."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=length,
        projection_dim=width,
        hidden_act="gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = CLIPTextModelWithProjection(config)
    for name, parameter in encoder.named_parameters():
        if "token_embedding" in name:
            parameter.normal_(0, 1, generator=generator)
        elif "position_embedding" in name:
            parameter.normal_(0, 0.7, generator=generator)
        elif parameter.ndim == 2:
            parameter.normal_(0, width**-0.5, generator=generator)
    return encoder.eval()


def t5_encoder(tokenizer: Any, width: int, seed: int) -> T5EncoderModel:
    """Encoder with one random layer."""
    return _t5(T5Config, T5EncoderModel, tokenizer, width, seed)


def umt5_encoder(tokenizer: Any, width: int, seed: int) -> UMT5EncoderModel:
    """Encoder with one random layer."""
    return _t5(UMT5Config, UMT5EncoderModel, tokenizer, width, seed)


@torch.no_grad()
def _t5(config_class: Any, model_class: Any, tokenizer: Any, width: int, seed: int) -> Any:
    config = config_class(
        vocab_size=len(tokenizer),
        d_model=width,
        d_ff=width,
        d_kv=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = model_class(config)
    encoder.shared.weight.normal_(0, 1, generator=torch.Generator().manual_seed(seed + 1))
    return encoder.eval()


def qwen_tokenizer(words: Sequence[str], special: Sequence[str] = ()) -> Qwen2Tokenizer:
    """A Qwen2 byte-pair tokenizer trained on the words; other text is encoded as bytes.

    Args:
        special: special tokens in addition to the chat-turn tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        min_frequency=1,
        show_progress=False,
        special_tokens=[QWEN_END, *QWEN_TURNS, *special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([" ".join(words), *words], trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        additional_special_tokens=[*QWEN_TURNS, *special],
    )


def vision_ids(tokenizer: Any) -> dict[str, int]:
    """Settings of a Qwen-VL model about the ids of `QWEN_VISION`."""
    return dict(zip(VISION_IDS, tokenizer.convert_tokens_to_ids(list(QWEN_VISION)), strict=True))


def qwen_processor(tokenizer: Qwen2Tokenizer, max_pixels: int) -> Qwen2VLProcessor:
    """The processor of Qwen's editing models: patches of 14 x 14 pixels; 2 x 2 patches become one token."""
    size = {"patch_size": 14, "merge_size": 2, "min_pixels": 28 * 28, "max_pixels": max_pixels}
    return Qwen2VLProcessor(Qwen2VLImageProcessor(**size), tokenizer, Qwen2VLVideoProcessor(**size))


def qwen_encoder(tokenizer: Any, width: int, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """Encoder with two random layers, and a vision tower of one layer, which reads images if the tokenizer has them."""
    head = width // 2
    config = Qwen2_5_VLConfig(
        **(vision_ids(tokenizer) if QWEN_VISION[0] in tokenizer.get_vocab() else {}),
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [head // 4, head // 8, head // 8],
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": width,
            "intermediate_size": width,
            "num_heads": 2,
            "out_hidden_size": width,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        encoder.get_input_embeddings().weight.normal_(0, 1, generator=torch.Generator().manual_seed(seed + 1))
    return encoder.eval()
