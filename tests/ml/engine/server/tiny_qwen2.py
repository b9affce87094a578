"""A tiny random language model, with a tokenizer: made offline, deterministic by seed."""

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_omni.models import text
from verl_omni.models.saving import save
from verl_omni.models.tiny_parts import WIDTH, WORDS


@torch.no_grad()
def make_tiny_qwen2(path: Path, seed: int = 0) -> None:
    """Write the model: two layers of 4 heads that share 2 key-value heads, 30 thousand parameters, and a tokenizer.

    Its weights are large, so the next token depends on all before it, and greedy choices are never close.
    """
    tokenizer = text.qwen_tokenizer(WORDS)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed + 1)
    model.get_input_embeddings().weight.normal_(0, 1, generator=generator)
    save(model.eval(), path)
    tokenizer.save_pretrained(path)
