"""Prompts that are the same are encoded once."""

from __future__ import annotations

import torch

from verl_omni.pipelines.distinct_prompts import encode_distinct


def test_each_distinct_prompt_is_encoded_once() -> None:
    encoded: list[list[str]] = []

    def encode(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        encoded.append(texts)
        lengths = torch.tensor([float(len(text)) for text in texts])
        return lengths[:, None].expand(-1, 4), lengths

    samples = ["red", "red", "a cat", "a cat", "red"]  # two of each prompt, and one of the next batch's
    embeds, pooled = encode_distinct(samples, encode)
    assert encoded == [["red", "a cat"]]
    assert pooled.tolist() == [3, 3, 5, 5, 3] and embeds.shape == (5, 4) and embeds[2].tolist() == [5] * 4
