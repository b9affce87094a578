"""Keys of prompts: equal for the samples of a prompt, different for everything that changes its embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import prompt_keys

REQUEST: dict[str, Any] = {
    "request_id": "a",
    "prompt_ids": [1, 2],
    "negative_prompt_ids": [3],
    "priority": 4,
    "image_data": None,
    "sampling_params": {"seed": 5, "guidance_scale": 4.5, "height": 512},
}
POSITIVE = (0,)
NEGATIVE = (1,)


def changed(**values: Any) -> tuple[str, str] | None:
    return prompt_keys({**REQUEST, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"request_id": "b"},
        {"priority": 9},
        {"sampling_params": {"seed": 6, "height": 512, "guidance_scale": 4.5}},
        {"sampling_params": {**REQUEST["sampling_params"], "sde_noise_seed": 7}},
        {"sampling_params": {**REQUEST["sampling_params"], "sde_window_seed": 7}},
    ],
)
def test_samples_of_a_prompt_have_the_same_keys(values: dict[str, Any]) -> None:
    assert changed(**values) == changed() is not None


@pytest.mark.parametrize(
    ("values", "different"),
    [
        ({"prompt_ids": [1, 2, 2]}, POSITIVE),
        ({"prompt_mask": [1, 0]}, POSITIVE),
        ({"extra_prompt_ids": {"t5": [1]}}, POSITIVE),
        ({"a_later_argument": "text"}, POSITIVE),
        ({"negative_prompt_ids": None}, NEGATIVE),
        ({"negative_extra_prompt_ids": {"t5": [1]}}, NEGATIVE),
        ({"sampling_params": {"guidance_scale": 1.0}}, POSITIVE + NEGATIVE),
        ({"mm_processor_kwargs": {"a": np.arange(2000)}}, POSITIVE),
    ],
)
def test_what_changes_embeddings_changes_the_key(values: dict[str, Any], different: tuple[int, ...]) -> None:
    one = changed()
    other = changed(**values)
    assert one is not None and other is not None
    assert tuple(place for place in (0, 1) if one[place] != other[place]) == different


def test_an_input_image_changes_both_keys_by_its_pixels() -> None:
    keys = [changed(image_data=[Image.new("RGB", (4, 4), color)]) for color in ("red", "red", "blue")]
    assert keys[0] == keys[1] is not None
    assert keys[2] is not None and not set(keys[0]) & set(keys[2]) and not set(keys[0]) & set(changed() or ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("convert", [lambda tensor: tensor, lambda tensor: tensor.float().numpy()])
def test_arrays_that_differ_in_one_of_many_elements_have_different_keys(dtype: torch.dtype, convert: Any) -> None:
    """`repr` shows four decimals, and omits the middle of more than 1,000 elements."""
    one = torch.ones(1200, dtype=dtype)
    other = one.clone()
    other[600] = 1 + 1e-2 if dtype.is_floating_point else 2
    keys = [changed(prompt_mask=convert(each)) for each in (one, one.clone(), other)]
    assert keys[0] == keys[1] is not None
    assert keys[2] is not None and keys[2][0] != keys[0][0]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), {1: 1, "a": 2}])
def test_a_value_that_is_neither_json_nor_an_array_shares_nothing(value: Any) -> None:
    assert changed(mm_processor_kwargs={"a": value}) is None


def test_prompts_with_other_media_have_no_key() -> None:
    assert changed(image_data=[object()]) is None
