"""Checks of sampling parameters."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from verl_omni.workers.rollout.vllm_rollout.server.sampling_checks import check_sampling


def check(over_http: bool = True, **params: Any) -> None:
    check_sampling(SimpleNamespace(**params), device="cuda", over_http=over_http)


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"height": "64"}, "height must be a whole number from 1 on, not '64'"),
        ({"width": 64.5}, "width"),
        ({"width": -64}, "width"),
        ({"num_frames": 0}, "num_frames"),
        ({"resolution": "a"}, "resolution"),
        ({"num_inference_steps": True}, "steps"),
        ({"num_inference_steps": 0}, "steps"),
        ({"max_sequence_length": "a"}, "max_sequence_length"),
        ({"num_outputs_per_prompt": 0}, "num_outputs_per_prompt"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"guidance_scale": math.nan}, "guidance_scale must be a number from 0.0 to 1000000.0, not nan"),
        ({"guidance_scale": math.inf}, "guidance_scale"),
        ({"guidance_scale": "a"}, "guidance_scale"),
        ({"guidance_scale_2": -1}, "guidance_scale_2"),
        ({"true_cfg_scale": [1]}, "true_cfg_scale"),
        ({"lora_scale": math.nan}, "lora_scale"),
        ({"extra_args": {"flow_shift": "x"}}, "flow_shift must be a number from 0.001 to 1000.0, not 'x'"),
        ({"extra_args": {"flow_shift": -3.0}}, "flow_shift must be a number from 0.001 to 1000.0, not -3.0"),
        ({"generator_device": "mps"}, "generator_device must be cpu or cuda, not 'mps'"),
    ],
)
def test_a_value_that_would_fail_a_batch_is_refused(wrong: dict[str, Any], words: str, over_http: bool) -> None:
    with pytest.raises(ValueError, match=words):
        check(over_http, **wrong)


def test_what_training_sends_is_accepted() -> None:
    check(
        over_http=False,
        height=np.int64(64),
        width=64,
        num_inference_steps=1000,
        guidance_scale=1,
        seed=2**64 - 1,
        true_cfg_scale=None,
        generator_device="cuda",
        num_outputs_per_prompt=1,
        lora_scale=1.0,
    )


def test_a_client_cannot_keep_the_engine_from_training() -> None:
    for wrong in ({"num_inference_steps": 201}, {"num_outputs_per_prompt": 11}):
        with pytest.raises(ValueError, match="whole number from 1 to"):
            check(**wrong)
    check(num_inference_steps=200, num_outputs_per_prompt=10)


def test_a_request_of_training_asks_for_one_sample() -> None:
    with pytest.raises(ValueError, match="num_outputs_per_prompt must be 1, not 2"):
        check(over_http=False, num_outputs_per_prompt=2)
