"""Scorers at the reference's import paths, as a user's own reward function calls them."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.reward_loop.stub_server import Serve
from tests.ml.reward_loop.test_clip_scorers import write_clip
from verl_omni.reward_loop import rewards
from verl_omni.utils.reward_score import default_compute_score_image, http_scorer_client
from verl_omni.utils.reward_score.choice_reward import compute_score as compute_choice
from verl_omni.utils.reward_score.genrm_ocr import compute_score_ocr
from verl_omni.utils.reward_score.jpeg_compressibility import compute_score as jpeg
from verl_omni.utils.reward_score.pickscore_reward import compute_score_pickscore
from verl_omni.utils.reward_score.unified_reward import compute_score_unified_reward

GENERATOR = torch.Generator().manual_seed(5)
IMAGE = torch.randint(256, (3, 32, 32), generator=GENERATOR, dtype=torch.uint8)


def test_jpeg_takes_an_image_alone_as_bytes_or_floats() -> None:
    wanted = rewards.get_scorer("jpeg")("d", IMAGE, None, None)
    assert jpeg(IMAGE) == jpeg(IMAGE.float() / 255) == wanted < 0
    black = torch.zeros_like(IMAGE)
    assert jpeg(torch.stack([IMAGE, black])) == wanted != jpeg(black)


def test_the_data_source_chooses_the_scorer(tmp_path: Path) -> None:
    assert default_compute_score_image("jpeg_compressibility", IMAGE, "") == jpeg(IMAGE)
    small = default_compute_score_image("jpeg", IMAGE.float() / 255, "", quality=5, other=1)
    assert small == rewards.get_scorer("jpeg")("d", IMAGE, None, None, quality=5) > jpeg(IMAGE)
    write_clip(tmp_path)
    info = {"prompt": "a red circle"}
    settings = {"model_name_or_path": str(tmp_path)}
    (wanted,) = rewards.get_scorer("clip_score")(["d"], [IMAGE], [""], [info], **settings)
    assert default_compute_score_image("clip_score", IMAGE, "", info, **settings) == wanted
    with pytest.raises(NotImplementedError, match="no scorer for data_source 'my_data'; scorers are aesthetic, "):
        default_compute_score_image("my_data", IMAGE, "")


def test_pickscore_has_the_scale_of_the_reference(tmp_path: Path) -> None:
    write_clip(tmp_path)
    info = {"prompt": "a red circle"}
    path = str(tmp_path)
    models = {"model_name_or_path": path, "processor_name_or_path": path}
    (plain,) = rewards.get_scorer("pickscore")(["d"], [IMAGE], [""], [info], **models)
    assert compute_score_pickscore("d", IMAGE, "", info, **models, other=1) == pytest.approx(plain / 26)
    by_name = {"data_source": "d", "solution_image": IMAGE.float() / 255, "ground_truth": "", "extra_info": info}
    assert compute_score_pickscore(**by_name, **models, score_scale=1) == pytest.approx(plain)


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("It is <answer> B </answer>", "B", 1.0),
        ("<answer>B</answer>", "<answer>B</answer>", 1.0),
        ("<answer>A</answer>", "B", 0.0),
        ("B", "B", 0.0),
        ("", "B", 0.0),
        ("", "", 0.0),
        ("<answer>B", "B", 0.0),
    ],
)
def test_a_choice_is_right_only_in_an_answer(response: str, truth: str, score: float) -> None:
    assert compute_choice(response, truth) == {"score": score, "accuracy": score}


def test_the_data_source_of_a_missing_scorer_or_setting_is_told_what_to_do() -> None:
    with pytest.raises(NotImplementedError, match="the scorer imagebind is not available: no working package fits"):
        default_compute_score_image("imagebind", IMAGE, "")
    with pytest.raises(TypeError, match="the scorer http: url: must be given"):
        default_compute_score_image("http", IMAGE, "", server_url="http://x")


def test_one_image_may_have_a_batch_dimension() -> None:
    assert default_compute_score_image("jpeg", IMAGE[None], "") == jpeg(IMAGE)
    several = torch.stack([IMAGE, torch.zeros_like(IMAGE)])
    assert default_compute_score_image("jpeg_compressibility", several, "") == jpeg(several) == jpeg(IMAGE)
    assert default_compute_score_image("jpeg", several, "") == (jpeg(several[0]) + jpeg(several[1])) / 2


@pytest.mark.parametrize(
    ("judge", "answer_text", "wanted"),
    [
        (compute_score_ocr, "HELLO", {"score": 1.0, "exact": 1.0, "cut": 0.0}),
        (compute_score_unified_reward, "Final Score: 3", {"score": 0.5, "rating": 3.0}),
    ],
)
async def test_a_judge_takes_the_arguments_that_verl_passes(
    serve: Serve, judge: Any, answer_text: str, wanted: dict[str, float]
) -> None:
    answer = 200, json.dumps({"choices": [{"message": {"content": answer_text}}]})
    server = serve(answer, answer)
    by_name = {"reward_router_address": server.address, "reward_model_tokenizer": object(), "model_name": "vlm"}
    assert await judge("d", IMAGE.float() / 255, "hello", None, *by_name.values()) == wanted
    assert await judge("d", IMAGE, "hello", {}, **by_name, max_tokens=7) == wanted
    first, second = server.received
    assert first["messages"] == second["messages"] and server.paths == ["/v1/chat/completions"] * 2
    assert (first["model"], second["max_tokens"]) == ("vlm", 7)


async def test_the_http_client_speaks_pickle(serve: Serve) -> None:
    server = serve((200, pickle.dumps({"scores": [0.75]})))
    request: Any = {"data_source": "d", "solution_image": IMAGE, "ground_truth": "the truth", "extra_info": {}}
    url = f"http://{server.address}/"
    assert await http_scorer_client.compute_score(**request, server_url=url, max_retries=0) == 0.75
    assert pickle.loads(server.received[0])["prompts"] == ["the truth"]
