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

    embeds, pooled = encode_distinct(["red", "a cat", "red", "a cat", "red"], encode)
    assert encoded == [["red", "a cat"]]
    assert pooled.tolist() == [3, 5, 3, 5, 3] and embeds.shape == (5, 4) and embeds[1].tolist() == [5] * 4


def test_prompts_may_be_token_ids_and_all_distinct() -> None:
    (found,) = encode_distinct([[1, 2], [3]], lambda ids: (torch.tensor([sum(each) for each in ids]),))
    assert found.tolist() == [3, 3]
