"""Conversion of requests for the engine, and of the engine's outputs for the agent loop."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from verl_omni.workers.rollout.vllm_rollout.language_model import token_requests
from verl_omni.workers.rollout.vllm_rollout.server import outputs, requests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # vLLM-Omni's own classes take half a minute to import

PICTURE = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2)
VIDEO = torch.stack([PICTURE, PICTURE + 1, PICTURE + 2], dim=1)  # [1, T, C, H, W]
AUDIO = torch.linspace(-1, 1, 8)


def engine_output(*images: Any, **fields: Any) -> Any:
    from vllm_omni.outputs import OmniRequestOutput

    return OmniRequestOutput.from_diffusion(request_id="1", images=list(images), **fields)


def sample(result: Any, **params: Any) -> Any:
    return outputs.to_diffusion_output(result, requests.sample_format(params), global_steps=4)


# --- samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        PICTURE,
        PICTURE[0],
        {"image": PICTURE},
        {"output": PICTURE},
        {"image": PICTURE, "output": None},
        Image.fromarray(PICTURE[0].permute(1, 2, 0).numpy()),
        PICTURE[0].permute(1, 2, 0).numpy(),
    ],
    ids=["batched", "tensor", "dict", "output", "first of a dict", "PIL", "array"],
)
def test_an_image_is_converted(image: Any) -> None:
    output = sample(engine_output(image))
    assert torch.equal(output.diffusion_output, PICTURE[0]) and output.stop_reason == "completed"
    assert output.extra_fields == {"global_steps": 4} and output.log_probs is None


@pytest.mark.parametrize("name", ["image", "video", "pt", "np"])
def test_the_reference_s_names_of_pixels_mean_pixels(name: str) -> None:
    assert torch.equal(sample(engine_output(PICTURE), output_type=name).diffusion_output, PICTURE[0])
    assert requests.engine_sampling_params({"output_type": name}).output_type == "pt"


@pytest.mark.parametrize(
    "images",
    [
        [VIDEO],
        [VIDEO[0]],
        [{"video": VIDEO}],
        [VIDEO[0].permute(0, 2, 3, 1).numpy()],
        [Image.fromarray(np.ascontiguousarray(frame.permute(1, 2, 0))) for frame in VIDEO[0]],
    ],
    ids=["batched", "tensor", "dict", "array", "PIL frames"],
)
def test_a_video_is_converted(images: list[Any]) -> None:
    output = sample(engine_output(*images, final_output_type="video"))
    assert torch.equal(output.diffusion_output, VIDEO[0])


def test_a_video_of_one_frame_keeps_its_frame_dimension() -> None:
    assert sample(engine_output(VIDEO[:, :1], final_output_type="video")).diffusion_output.shape == (1, 3, 2, 2)
    assert sample(engine_output(VIDEO[0, :1], final_output_type="video")).diffusion_output.shape == (1, 3, 2, 2)


@pytest.mark.parametrize(
    ("result", "rate"),
    [
        (lambda: engine_output((VIDEO, AUDIO), final_output_type="video"), 32000),
        (lambda: engine_output({"video": VIDEO, "audio": AUDIO}), 32000),
        (
            lambda: engine_output(
                VIDEO, final_output_type="video", multimodal_output={"audio": AUDIO.numpy(), "audio_sample_rate": 16000}
            ),
            16000,
        ),
    ],
    ids=["pair", "dict", "multimodal"],
)
def test_the_audio_of_a_video_is_an_extra_field(result: Any, rate: int) -> None:
    output = sample(result())
    assert torch.equal(output.diffusion_output, VIDEO[0])
    assert torch.equal(output.extra_fields["audio"], AUDIO) and output.extra_fields["audio_sample_rate"] == rate


@pytest.mark.parametrize(
    "result", [lambda: engine_output({"audio": AUDIO}), lambda: engine_output(multimodal_output={"audio": AUDIO})]
)
def test_audio_alone_is_the_sample(result: Any) -> None:
    output = sample(result())
    assert torch.equal(output.diffusion_output, AUDIO) and "audio" not in output.extra_fields


def test_a_trajectory_loses_the_batch_dimension() -> None:
    rl = {"scalar": torch.tensor(2.0), "nothing": None, "empty": [], "listed": [5, 6], "sigmas": torch.ones(1, 3)}
    result = engine_output(
        PICTURE,
        trajectory_latents=torch.ones(1, 3, 4),
        trajectory_timesteps=torch.ones(1, 2),
        trajectory_log_probs=torch.zeros(1, 2),
        multimodal_output={"metadata": {"rl": rl, "prompt_embeddings": {"prompt_embeds": torch.ones(1, 5, 6)}}},
    )
    output = sample(result, logprobs=True)
    assert output.log_probs.shape == (2,)
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in output.extra_fields.items()}
    assert shapes == {
        "all_latents": (3, 4),
        "all_timesteps": (2,),
        "scalar": (),
        "nothing": (),
        "empty": (),
        "listed": (),
        "sigmas": (3,),
        "prompt_embeds": (5, 6),
        "global_steps": (),
    }
    assert output.extra_fields["listed"] == 5 and output.extra_fields["empty"] == []
    assert sample(result).log_probs is None
    rl["all_latents"] = torch.ones(1)
    with pytest.raises(ValueError, match="Duplicate rollout metadata field: all_latents"):
        sample(result)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("abort", "aborted"), ("stop", "completed"), ("length", "completed"), ("tired", "tired"), (None, "aborted")],
)
@pytest.mark.parametrize("params", [{}, {"output_type": "latent"}, {"pixel_dtype": "float32"}])
def test_a_request_without_an_image_gives_an_empty_sample_with_its_stop_reason(
    finish: Any, reason: str, params: dict[str, Any]
) -> None:
    from vllm.outputs import CompletionOutput

    result = engine_output()
    if finish is not None:
        result.outputs = [CompletionOutput(0, "", [], None, None, finish_reason=finish)]
    for output in (sample(result, **params), sample(None, **params) if finish is None else sample(result, **params)):
        assert output.diffusion_output.numel() == 0 and output.stop_reason == reason
        assert output.diffusion_output.dtype == (torch.float32 if params else torch.uint8)
        assert output.extra_fields == {"global_steps": 4}


# --- requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "asked"), [(0, 1.0), (0.0, 1.0), (1.0, 1.0), (2.5, 2.5), (None, None)])
def test_a_guidance_of_0_does_not_ask_for_the_engines_default(scale: float | None, asked: float | None) -> None:
    assert requests.engine_sampling_params({"true_cfg_scale": scale}).true_cfg_scale == asked


def test_parameters_are_split_between_engine_and_pipeline() -> None:
    params = {
        "height": 64,
        "seed": None,
        "noise_level": 0.7,
        "global_steps": 3,
        "logprobs": True,
        "output_type": "image",
        "video_flow_shift": 3.0,
        "extra_args": {"own": 1},
    }
    before = copy.deepcopy(params)
    sampling_params = requests.engine_sampling_params(params)
    assert params == before
    assert (sampling_params.height, sampling_params.seed, sampling_params.output_type) == (64, None, "pt")
    assert sampling_params.extra_args == {
        "own": 1,
        "noise_level": 0.7,
        "global_steps": 3,
        "logprobs": True,
        "pixel_dtype": "uint8",
        "weights_version": True,
        "flow_shift": 3.0,
    }


@pytest.mark.parametrize("params", [{"output_type": "hologram"}, {"pixel_dtype": "int4"}])
def test_unknown_formats_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Unknown .*; one of"):
        requests.engine_sampling_params(params)


def test_a_prompt_contains_exactly_the_given_parts() -> None:
    assert requests.engine_prompt(requests.RolloutRequest([1, 2])) == {"prompt_token_ids": [1, 2]}
    request = requests.RolloutRequest(
        torch.tensor([[1, 2]]),
        negative_prompt_ids=[3],
        prompt_mask=[1, 1],
        extra_prompt_ids={"t5": np.array([4, 5])},
        negative_extra_prompt_ids={"t5": [6]},
        image_data=["picture"],
        audio_data=["sound"],
        mm_processor_kwargs={"fps": 2},
        prompt_text="A  Cat",
        negative_prompt_text="",
    )
    media = {"image": ["picture"], "audio": ["sound"]}
    assert requests.engine_prompt(request, several_stages=True) == {
        "prompt_token_ids": [1, 2],
        "negative_prompt_ids": [3],
        "extra_prompt_ids": {"t5": [4, 5]},
        "negative_extra_prompt_ids": {"t5": [6]},
        "modalities": ["image"],
        "prompt_text": "A  Cat",
        "negative_prompt_text": "",
        "mm_processor_kwargs": {"fps": 2},
        "multi_modal_data": media,
        "extra_args": {"multi_modal_data": media},
    }


@pytest.mark.parametrize("mask", [[1, 1, 0, 0], torch.tensor([[1, 1, 0, 0]]), np.array([True, True, False, False])])
def test_masked_ids_are_no_part_of_the_prompt(mask: Any) -> None:
    """No pipeline reads a mask: the text encoder would attend to the padding."""
    padded = requests.RolloutRequest([1, 2, 0, 0], prompt_mask=mask)
    for convert in (requests.engine_prompt, token_requests.token_prompt):
        assert convert(padded) == {"prompt_token_ids": [1, 2]}
        with pytest.raises(ValueError, match="prompt_mask has 4 values for 3 prompt_ids"):
            convert(requests.RolloutRequest([1, 2, 0], prompt_mask=mask))


# --- tokens --------------------------------------------------------------------------------------------


def tokens(params: dict[str, Any], **lengths: int) -> Any:
    return token_requests.token_sampling_params(
        params, **{"prompt_length": 4, "max_model_len": 10, "response_length": 3, **lengths}
    )


@pytest.mark.parametrize(
    ("params", "limit"),
    [({}, 3), ({"max_tokens": 5}, 5), ({"max_new_tokens": 2}, 2), ({"max_tokens": 99}, 6), ({"max_tokens": 0}, 1)],
)
def test_a_response_is_limited_by_the_request_and_by_the_model(params: dict[str, Any], limit: int) -> None:
    before = dict(params)
    assert tokens(params).max_tokens == limit
    assert params == before


@pytest.mark.parametrize(("asked", "count"), [(True, 0), (3, 3), (0, 0), (False, None), (None, None)])
def test_log_probabilities_of_tokens(asked: Any, count: int | None) -> None:
    assert tokens({"logprobs": asked}).logprobs == count


def test_the_repetition_penalty_has_a_default() -> None:
    assert tokens({}).repetition_penalty == 1.0
    assert tokens({"repetition_penalty": 1.5, "temperature": 0.3}).repetition_penalty == 1.5


@pytest.mark.parametrize("length", [10, 11])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=rf"Prompt length \({length}\) meets or exceeds"):
        tokens({}, prompt_length=length)


def test_invalid_token_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="The prompt has no tokens"):
        tokens({}, prompt_length=0)
    with pytest.raises(ValueError, match="Unknown sampling parameters: colour, size"):
        tokens({"size": 1, "colour": "red", "temperature": 0.5})


def test_a_request_without_tokens_is_an_error() -> None:
    from vllm_omni.outputs import OmniRequestOutput

    for nothing in (None, OmniRequestOutput(request_id="1")):
        with pytest.raises(RuntimeError, match="without an output"):
            token_requests.to_token_output(nothing, global_steps=2)


# --- modes ---------------------------------------------------------------------------------------------


def test_an_unknown_output_mode_is_refused() -> None:
    from verl_omni.workers.config import DiffusionRolloutConfig

    with pytest.raises(ValueError, match=r"engine_kwargs.vllm_omni.output_mode: midi is not supported"):
        DiffusionRolloutConfig(engine_kwargs={"vllm_omni": {"output_mode": "midi"}})


def test_a_language_model_is_the_first_stage_and_a_pipeline_the_last() -> None:
    from verl_omni.workers.rollout.vllm_rollout.language_model.mode import LanguageModelMode
    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode

    request = requests.RolloutRequest([1])
    config = SimpleNamespace(max_model_len=9, response_length=2)
    tokens_request = LanguageModelMode().engine_request(request, {}, "adapter", config, ["one", "two"])
    own, other = tokens_request["sampling_params_list"]
    assert own.max_tokens == 2 and other == "two"
    assert tokens_request["lora_request"] == "adapter" and "modalities" not in tokens_request["prompt"]
    image_request = DiffusionMode().engine_request(request, {"height": 8}, "adapter", config, ["one", "two"])
    other, own = image_request["sampling_params_list"]
    assert other == "one" and own.height == 8 and own.lora_request == "adapter"
    assert image_request["prompt"]["modalities"] == ["image"]


def test_parameters_that_no_model_reads_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.workers.rollout.vllm_rollout.server import diffusion_mode, requests

    named: list[str] = []
    # Not caplog: servers of other tests change which loggers it sees.
    monkeypatch.setattr(diffusion_mode.logger, "warning", lambda text, *values: named.append(text % values))
    mode = diffusion_mode.DiffusionMode()
    for _ in range(2):
        mode.engine_request(requests.RolloutRequest([1]), {"height": 8, "guidance": 3.0}, None, None, [])
    assert named == ["no model reads the sampling parameter guidance; did you mean guidance_scale?"]


def test_every_parameter_of_a_run_is_read() -> None:
    from tests.ml import smallest_job
    from verl_omni.agent_loop.sampling import row_params
    from verl_omni.compat import whole_batches
    from verl_omni.workers.rollout.vllm_rollout.server import requests

    rollout = smallest_job.load("actor_rollout_ref.rollout.algo.init_same_noise=true").actor_rollout_ref.rollout
    wanted = {"global_steps": 1, "finished_steps": 1, "rollout_seed": 3, whole_batches.PART: (0, 1)}
    training = row_params(rollout, wanted, 2, {})
    evaluation = row_params(rollout, {"validate": True}, 2, {"seed": [1, 2]})
    for params in (*training, *evaluation, *whole_batches.call_params("call", 2)):
        assert requests.describe_unread(params) == {}
    assert "sde_noise_seed" in training[0]
