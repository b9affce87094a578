"""Each scorer alone."""

import base64
import io
import math
import pkgutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as npst
from PIL import Image

from tests.ml.reward_loop.stub_server import CUT, Serve, Server
from verl_omni.reward_loop import reward_server, rewards
from verl_omni.reward_loop.reward_server import RewardServerError
from verl_omni.reward_loop.rewards.python import load
from verl_omni.reward_loop.scorer_signature import takes_groups

PIXELS = npst.arrays(np.uint8, (3, 16, 16))
CONSTANT = torch.full((3, 16, 16), 128, dtype=torch.uint8)


def score(name: str, picture: torch.Tensor, truth: Any = "", **settings: Any) -> Any:
    return rewards.get_scorer(name)("test", picture, truth, {"prompt": "a prompt"}, **settings)


def test_every_registered_name_has_a_scorer_and_others_are_refused() -> None:
    assert all(callable(rewards.get_scorer(name)) for name in rewards.SCORERS)
    with pytest.raises(ValueError, match="Unknown scorer 'jpg'; one of aesthetic, brightness, clap, clip_score"):
        rewards.get_scorer("jpg")


def test_every_scorer_of_the_package_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    names = [module.name for module in pkgutil.iter_modules(rewards.__path__)]
    assert [name for name in names if f'"{name}"' not in tests] == [], "no file of this folder names them"


@pytest.mark.parametrize("name", ["choice", "imagebind", "videoalign_native"])
def test_a_missing_scorer_of_the_reference_is_refused_with_what_to_do(name: str) -> None:
    message = f"{name} is not available: .+; serve it yourself and use the scorer http, or write a function"
    with pytest.raises(ValueError, match=message):
        rewards.get_scorer(name)


@settings(deadline=None)  # the machine may be busy
@given(PIXELS)
def test_brightness_and_its_negative_add_up_to_one(pixels: np.ndarray) -> None:
    picture = torch.from_numpy(pixels)
    assert 0 <= score("brightness", picture) <= 1
    assert score("brightness", picture) + score("brightness", 255 - picture) == pytest.approx(1)


@settings(deadline=None)  # the machine may be busy
@given(PIXELS)
def test_the_three_colours_cancel(pixels: np.ndarray) -> None:
    picture = torch.from_numpy(pixels)
    scores = [score("color", picture, color=name) for name in ("red", "green", "blue")]
    assert sum(scores) == pytest.approx(0, abs=1e-6)
    assert all(-1 <= value <= 1 for value in scores)
    assert score("color", picture) == scores[0]


def test_a_pure_colour_scores_one_and_an_unknown_one_is_refused() -> None:
    blue = torch.zeros(3, 4, 4, dtype=torch.uint8)
    blue[2] = 255
    assert score("color", blue, color="blue") == 1.0
    assert score("color", blue) == -0.5
    with pytest.raises(ValueError, match="Unknown color 'pink'; one of red, green, blue"):
        score("color", blue, color="pink")


def test_a_video_is_scored_over_all_frames_or_refused() -> None:
    video = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    video[0, 0] = 255
    assert score("brightness", video) == pytest.approx(1 / 12)
    assert score("color", video, color="red") == pytest.approx(0.25)
    assert score("jpeg", video) == pytest.approx((score("jpeg", video[0]) + 3 * score("jpeg", video[1])) / 4)
    names = [name for name in rewards.SCORERS if rewards.modality(name) == "image"]
    assert {"shapes", "win_rate"} <= set(names)
    for name in (name for name in names if not takes_groups(rewards.get_scorer(name))):
        with pytest.raises(ValueError, match=r"takes images.*\[4, 3, 8, 8\]"):
            score(name, video)


def test_jpeg_prefers_what_compresses_and_counts_kilobytes() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 64, 64), dtype=np.uint8))
    file = io.BytesIO()
    Image.fromarray(noise.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=95)
    assert score("jpeg", noise) == -len(file.getvalue()) / 1000
    assert score("jpeg", noise) < score("jpeg", noise, quality=50) < score("jpeg", CONSTANT.repeat(1, 4, 4)) < 0


@pytest.fixture
def scorer_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "LOADS = []\nLOADS.append(1)\nNUMBER = 3\n"
        "@dataclass\nclass Answer:\n    score: float\n"
        "def judge(data_source, solution_image, ground_truth, extra_info, factor=1.0):\n"
        "    return {'score': Answer(factor * len(ground_truth)).score, 'loads': len(LOADS)}\n"
        "async def late(**_):\n    return 0.0\n"
    )
    return path


def test_a_function_of_a_file_gets_the_arguments_and_the_settings(scorer_file: Path) -> None:
    scored = score("python", CONSTANT, "four", function=f"{scorer_file}:judge", factor=0.5)
    assert scored == {"score": 2.0, "loads": 1}


def test_a_file_imports_other_files_of_its_folder_only_with_it_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_a_scorer.py").write_text("VALUE = 1\n")
    (tmp_path / "with_helper.py").write_text("from helper_of_a_scorer import VALUE\n\n\ndef f():\n    return VALUE\n")
    with pytest.raises(ModuleNotFoundError, match="helper_of_a_scorer"):
        load(f"{tmp_path}/with_helper.py:f")
    monkeypatch.syspath_prepend(tmp_path)
    assert load(f"{tmp_path}/with_helper.py:f")() == 1


def test_many_threads_execute_a_file_once(scorer_file: Path) -> None:
    ready = threading.Barrier(8)
    loaded = []

    def ask() -> None:
        ready.wait()
        loaded.append(load(f"{scorer_file}:judge"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8
    assert len(set(map(id, loaded))) == 1


def test_a_function_of_a_module_by_name() -> None:
    assert score("python", CONSTANT, function="verl_omni.reward_loop.rewards.brightness:compute_score") == (
        score("brightness", CONSTANT)
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("", "write 'path/to/file.py:name'"),
        ("mine.py", "write 'path/to/file.py:name'"),
        ("FILE:judge it", "write 'path/to/file.py:name'"),
        ("absent.py:judge", "no file .*absent.py"),
        ("no_such_package.scorers:judge", "no module 'no_such_package.scorers'"),
        ("FILE:nothing", "has no function 'nothing'"),
        ("FILE:NUMBER", "has no function 'NUMBER'"),
        ("FILE:late", "is async"),
    ],
)
def test_a_function_that_cannot_be_loaded_says_why(scorer_file: Path, function: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score("python", CONSTANT, function=function.replace("FILE", str(scorer_file)))


def url(server: Server) -> str:
    return f"http://{server.address}/score"


def test_the_server_gets_the_picture_and_the_prompt(serve: Serve) -> None:
    server = serve((200, '{"score": 0.25, "detail": 2, "note": "text"}'))
    picture = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 5, 7), dtype=np.uint8))
    assert score("http", picture, "truth", url=url(server)) == {"score": 0.25, "detail": 2.0}
    (sent,) = server.received
    decoded = np.array(Image.open(io.BytesIO(base64.b64decode(sent.pop("image")))))
    assert (decoded == picture.permute(1, 2, 0).numpy()).all()
    assert sent == {
        "prompt": "a prompt",
        "ground_truth": "truth",
        "data_source": "test",
        "extra_info": {"prompt": "a prompt"},
    }


@pytest.mark.parametrize("name", ["http", "http_batch", "latent_http"])
def test_a_server_gets_the_fields_of_a_row_that_json_has(serve: Serve, name: str) -> None:
    server = serve((200, '{"score": 1, "scores": [{"score": 1}]}'))
    include = [{"class": "cup", "count": 2, "color": None}]
    info = {"include": include, "images": [Image.new("RGB", (2, 2))], "audio": torch.zeros(2), "ratio": math.nan}
    sample = torch.zeros(2, 2) if name == "latent_http" else CONSTANT
    values: tuple[Any, ...] = ("d", sample, "t", info)
    arguments = [[value] for value in values] if name == "http_batch" else values
    rewards.get_scorer(name)(*arguments, **{"server_url" if name == "latent_http" else "url": url(server)})
    sent = server.received[0]["samples"][0] if name == "http_batch" else server.received[0]
    assert sent["extra_info"] == {"include": include} and sent["prompt"] is None


@pytest.mark.parametrize(
    ("name", "attempts"),
    [("http", {"attempts": 4}), ("http_batch", {"attempts": 4}), ("latent_http", {"max_retries": 3})],
)
def test_the_first_pause_is_a_setting_and_later_ones_grow(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, attempts: dict[str, int]
) -> None:
    server = serve(*[(503, "busy")] * 3, (200, '{"score": 1, "scores": [{"score": 1}]}'))
    paused = []
    monkeypatch.setattr(reward_server, "SLEEP", paused.append)
    values: tuple[Any, ...] = ("d", torch.zeros(2, 2) if name == "latent_http" else CONSTANT, "t", {})
    arguments = [[value] for value in values] if name == "http_batch" else values
    address = {"server_url" if name == "latent_http" else "url": url(server)}
    rewards.get_scorer(name)(*arguments, **address, **attempts, retry_backoff=4)
    assert paused == [4, 8, 10] and len(server.received) == 4


def test_a_server_of_latents_gets_them_and_its_score_is_scaled(serve: Serve) -> None:
    server = serve((503, "busy"), (200, '{"score": 2.0, "detail": 5}'))
    latents = torch.randn(4, 3, 2).to(torch.bfloat16)
    settings = {"server_url": url(server), "noise_level": 0.4, "score_scale": 0.1, "score_bias": 1.0}
    assert score("latent_http", latents, "truth", **settings) == {"score": 1.2, "server_score": 2.0, "detail": 5.0}
    sent = server.received[-1]
    decoded = np.frombuffer(base64.b64decode(sent.pop("latents")), "<f4").reshape(sent.pop("shape"))
    assert (decoded == latents.float().numpy()).all() and len(server.received) == 2
    assert sent == {
        "prompt": "a prompt",
        "ground_truth": "truth",
        "data_source": "test",
        "noise_level": 0.4,
        "noise_seed": None,
        "extra_info": {"prompt": "a prompt"},
    }
    with pytest.raises(ValueError, match=r"latent_http takes latents, and got torch.uint8 pixels; write .*=latent"):
        score("latent_http", CONSTANT, **settings)


def batch_of(pictures: list[torch.Tensor], **settings: Any) -> Any:
    count = len(pictures)
    truths = [f"truth {number}" for number in range(count)]
    infos = [{"prompt": f"prompt {number}"} for number in range(count)]
    return rewards.get_scorer("http_batch")(["test"] * count, pictures, truths, infos, **settings)


def test_a_batch_is_one_request(serve: Serve) -> None:
    server = serve((200, '{"scores": [{"score": 0.25, "detail": 2}, {"score": 1}]}'))
    assert batch_of([CONSTANT, CONSTANT // 2], url=url(server)) == [{"score": 0.25, "detail": 2.0}, {"score": 1.0}]
    (sent,) = server.received
    assert [(sample["prompt"], sample["ground_truth"]) for sample in sent["samples"]] == [
        ("prompt 0", "truth 0"),
        ("prompt 1", "truth 1"),
    ]
    alone = serve((200, '{"score": 1}'))
    score("http", CONSTANT, url=url(alone))
    assert alone.received[0]["image"] == sent["samples"][0]["image"] != sent["samples"][1]["image"]


@pytest.mark.parametrize("answer", ["[]", '{"scores": [{"score": 1}]}', '{"score": 1}'])
def test_a_response_without_a_score_for_each_sample_is_an_error(serve: Serve, answer: str) -> None:
    server = serve((200, answer))
    with pytest.raises(RewardServerError, match="the response has no 2 'scores'"):
        batch_of([CONSTANT] * 2, url=url(server))


def test_a_server_abstains_with_null_as_the_score_of_a_sample(serve: Serve) -> None:
    empty = '{"score": null, "detail": 2}'
    assert score("http", CONSTANT, url=url(serve((200, empty)))) is None
    assert score("latent_http", torch.zeros(4, 3, 2), "truth", server_url=url(serve((200, empty)))) is None
    server = serve((200, f'{{"scores": [{{"score": 1}}, {empty}]}}'))
    assert batch_of([CONSTANT] * 2, url=url(server)) == [{"score": 1.0}, None]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((500, ""), "status 500"),
        ((200, "sorry"), "the response is not JSON: status 200: sorry, in each of 1 attempts"),
        ((200, '{"value": 1}'), "has no number 'score'"),
        ((200, '{"score": "high"}'), "has no number 'score'"),
        ((200, "[1]"), "has no number 'score'"),
        ((200, '{"score": NaN}'), "has the score nan, which is not finite in fp32"),
        ((200, '{"score": -1e999}'), "has the score -inf, which is not finite in fp32"),
        ((200, f'{{"score": 1{"0" * 400}}}'), "has the score inf, which is not finite in fp32"),
    ],
)
def test_an_unusable_response_names_the_server_and_the_fault(
    serve: Serve, answer: tuple[int, str], message: str
) -> None:
    server = serve(answer)
    with pytest.raises(RewardServerError, match=message) as caught:
        score("http", CONSTANT, url=url(server), attempts=1)
    assert url(server) in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        (429, "slow down"),
        (408, ""),
        (502, "<html>bad gateway</html>"),
        (200, "<html>proxy</html>"),
        (200, '{"sco'),
        (200, '{"score": 0.5, "detail": 1}', CUT),
        (200, "[" * 100_000),
    ],
)
def test_an_answer_that_may_be_another_one_later_is_asked_for_again(serve: Serve, answer: tuple[Any, ...]) -> None:
    server = serve(answer, answer, (200, '{"score": 1}'))
    assert score("http", CONSTANT, url=url(server)) == {"score": 1.0}
    assert len(server.received) == 3
    failing = serve(answer, answer)
    with pytest.raises(RewardServerError, match="2 attempts") as caught:
        score("http", CONSTANT, url=url(failing), attempts=2)
    assert str(caught.value).startswith(f"{url(failing)}: ") and len(str(caught.value)) < 500


def test_a_redirect_says_where_to(serve: Serve) -> None:
    """Such as from http to https, or to a path with a slash at its end."""
    server = serve((307, "", {"Location": "https://rewards.example/score/"}))
    with pytest.raises(
        RewardServerError, match=r"307: +\(it redirects to https://rewards\.example/score/, and .*write"
    ):
        score("http", CONSTANT, url=url(server))
    assert len(server.received) == 1


def test_an_unreachable_server_is_named() -> None:
    with pytest.raises(RewardServerError, match=r"http://127\.0\.0\.1:9/x") as unreachable:
        score("http", CONSTANT, url="http://127.0.0.1:9/x", attempts=1)
    assert isinstance(unreachable.value, ConnectionError), "so that the samples of a batch are not asked about alone"
