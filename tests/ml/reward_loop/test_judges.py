"""The scorers that ask a vision-language judge, against a stand-in that answers as an OpenAI-compatible server does."""

import asyncio
import base64
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from PIL import Image
from verl import DataProto

from tests.ml.reward_loop.stub_server import CUT, Serve, Server
from verl_omni.reward_loop import http_answers, http_exchange, judge_client, reward_server, rewards
from verl_omni.reward_loop.http_exchange import disconnect
from verl_omni.reward_loop.judge_answers import JudgeAnswer, better_of_two
from verl_omni.reward_loop.judge_client import JudgeError
from verl_omni.reward_loop.reward_manager import MultiVisualRewardManager, VisualRewardManager
from verl_omni.reward_loop.rewards.genrm_ocr import edit_distance, text_score
from verl_omni.reward_loop.rewards.win_rate import pairs_of

PICTURE = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 5, 7), dtype=np.uint8))
WORDS = st.text(alphabet="abc ", max_size=6)


def says(text: str | None) -> tuple[int, str]:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


async def ask(name: str, server: Server, truth: str = "OPEN", sample: torch.Tensor = PICTURE, **options: Any) -> Any:
    options = {"base_url": f"http://{server.address}/v1/", "model": "vlm", **options}
    return await rewards.get_scorer(name)("test", sample, truth, {"prompt": "a sign with {braces}"}, **options)


def picture_of(body: dict[str, Any], place: int = 0) -> Any:
    """The pixels [H, W, 3] that a request has, of one of its images."""
    kind, _, data = body["messages"][0]["content"][place]["image_url"]["url"].partition(",")
    assert kind == "data:image/png;base64"
    return np.array(Image.open(io.BytesIO(base64.b64decode(data))))


async def test_the_judge_gets_the_image_and_the_question(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    server = serve(says("open"), says("x"))
    assert await ask("genrm_ocr", server, api_key_env="JUDGE_KEY", max_tokens=9) == {
        "score": 1.0,
        "exact": 1.0,
        "cut": 0.0,
    }
    await ask("genrm_ocr", server, question="What does the sign say?")
    sent, second = server.received
    assert (picture_of(sent) == PICTURE.permute(1, 2, 0).numpy()).all()
    _, question = sent.pop("messages")[0]["content"]
    assert sent == {"model": "vlm", "temperature": 0, "max_tokens": 9}
    assert (server.paths[0], server.keys) == ("/v1/chat/completions", ["Bearer secret", None])
    assert question["text"].startswith("Transcribe all text")
    assert second["messages"][0]["content"][1]["text"] == "What does the sign say?"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("OPEN", 1.0),
        (" o pen\n", 1.0),
        ("ＯＰＥＮ", 1.0),
        ("OPN", 0.75),
        ("0PEM", 0.5),
        ("", 0.0),
        ("closed for repairs", 0.0),
    ],
)
async def test_the_text_of_the_image_is_compared(serve: Serve, answer: str, score: float) -> None:
    result = await ask("genrm_ocr", serve(says(answer)))
    assert result == {"score": score, "exact": float(score == 1), "cut": 0.0}


def slow_distance(left: str, right: str) -> int:
    """Levenshtein's own definition."""
    if not left or not right:
        return len(left) + len(right)
    shorter = slow_distance(left[1:], right[1:])
    if left[0] == right[0]:
        return shorter
    return 1 + min(shorter, slow_distance(left[1:], right), slow_distance(left, right[1:]))


@settings(deadline=None, max_examples=100)  # the machine may be busy
@given(WORDS, WORDS)
def test_the_score_is_that_of_the_definition(read: str, wanted: str) -> None:
    assert edit_distance(read, wanted) == slow_distance(read, wanted)
    if wanted:
        assert text_score(read, wanted) == max(1 - slow_distance(read, wanted) / len(wanted), 0)


@pytest.mark.parametrize("truth", ["", "  ", "a sign with {braces}"])
async def test_a_row_without_a_text_is_refused(serve: Serve, truth: str) -> None:
    with pytest.raises(ValueError, match="give it a column ground_truth"):
        await ask("genrm_ocr", serve(), truth)


async def test_a_rating_is_scaled_to_its_bounds(serve: Serve) -> None:
    server = serve(says("Final Score: 4"), says("7.5"))
    assert await ask("unified_reward", server) == {"score": 0.75, "rating": 4.0}
    options = {"template": "From {lowest} to {highest}, how good is {prompt}?", "lowest": 0, "highest": 10}
    assert await ask("unified_reward", server, **options) == {"score": 0.75, "rating": 7.5}
    asked = [sent["messages"][0]["content"][1]["text"] for sent in server.received]
    assert "Caption: a sign with {braces}\nGive one rating from 1 (worst) to 5 (best)" in asked[0]
    assert asked[1] == "From 0 to 10, how good is a sign with {braces}?"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (says("Final Score: 9"), "the rating 9 in the answer of vlm, expected 'Final Score: N' from 1 to 5"),
        (says("a fine picture"), "no rating in the answer of vlm.*'a fine picture'"),
        (says(None), "content is no text"),
        ((200, "sorry"), "the response is not JSON: status 200: sorry in each of 1 attempts"),
        ((200, '{"choices": []}'), "expected choices"),
        ((200, '{"choices": 1}'), "expected choices"),
        ((404, "no model vlm"), r"status 404: no model vlm; check base_url, model \(vlm\) and api_key_env"),
        ((401, ""), "status 401"),
        ((503, "starting"), "status 503: starting in each of 1 attempts"),
    ],
)
async def test_an_unusable_response_names_the_judge_and_the_fault(
    serve: Serve, response: tuple[int, str], message: str
) -> None:
    server = serve(response, says("3"))
    attempts = 1 if "each of 1 attempts" in message else 3
    with pytest.raises(JudgeError, match=message) as caught:
        await ask("unified_reward", server, attempts=attempts)
    assert len(server.received) == 1, "a judge that refuses is not asked again"
    assert f"http://{server.address}/v1/chat/completions" in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        (429, "slow down"),
        (200, "<html>proxy</html>"),
        (*says("3"), CUT),
    ],
)
async def test_an_answer_that_may_be_another_one_later_is_asked_for_again(
    serve: Serve, answer: tuple[Any, ...]
) -> None:
    server = serve(answer, answer, says("3"))
    assert (await ask("unified_reward", server))["rating"] == 3.0
    assert len(server.received) == 3
    failing = serve(answer, answer)
    with pytest.raises(JudgeError, match="2 attempts") as caught:
        await ask("unified_reward", failing, attempts=2)
    assert failing.address in str(caught.value) and len(str(caught.value)) < 500
    assert "start the judge's server" not in str(caught.value), "it has answered"


async def test_a_judge_that_says_when_to_ask_again_is_asked_then(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def recorded(*arguments: Any) -> float:
        pauses.append(http_answers.pause_before(*arguments))
        return 0.0

    monkeypatch.setattr(judge_client, "pause_before", recorded)
    server = serve((429, "", {"Retry-After": "7"}), (503, "", {"Retry-After": "3600"}), (429, ""), says("3"))
    assert (await ask("unified_reward", server, attempts=4))["rating"] == 3.0
    assert pauses == [7.0, http_answers.LONGEST_PAUSE, 0.0]
    with pytest.raises(JudgeError, match=r"status 429: busy \(it asks to wait 9 s\) in each of 1 attempts"):
        await ask("unified_reward", serve((429, "busy", {"Retry-After": "9"})), attempts=1)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("Sat, 03 Jan 2026 00:00:05 GMT", 5.0),
        ("Fri, 02 Jan 2026 00:00:00 GMT", 0.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1e9", None),
    ],
)
def test_a_server_may_say_in_two_ways_when_to_ask_again(value: str | None, seconds: float | None) -> None:
    assert http_answers.retry_after(value, lambda: datetime(2026, 1, 3, tzinfo=UTC)) == seconds


async def test_an_answer_without_an_end_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "LARGEST_ANSWER", 1000)
    endless = serve(says("x" * 2000), says("3"))
    with pytest.raises(JudgeError, match="the answer is larger than 1000 bytes") as caught:
        await ask("unified_reward", endless)
    assert len(endless.received) == 1 and len(str(caught.value)) < 500


async def test_an_unreachable_judge_says_what_to_do() -> None:
    absent = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "attempts": 1, "timeout": 5}
    with pytest.raises(JudgeError, match=r"no response in 1 attempts of 5 s \(ConnectError.*start the judge's server"):
        await rewards.get_scorer("unified_reward")("t", PICTURE, "", {"prompt": "p"}, **absent)
    await disconnect()


async def test_connections_are_kept(serve: Serve) -> None:
    server = serve(*[says("3")] * 5)
    for _ in range(5):
        await ask("unified_reward", server)
    assert (len(server.received), server.connections) == (5, 1)


VIDEO = torch.stack([PICTURE, PICTURE * 0, 255 - PICTURE, PICTURE, PICTURE])


async def test_of_a_video_the_judge_gets_frames_at_the_interval(serve: Serve) -> None:
    server = serve(*[says("Final Score: 2")] * 2, *[says("Final Score: 4")] * 3)
    assert (await ask("unified_reward", server, sample=VIDEO))["rating"] == 2
    assert await ask("unified_reward", server, sample=VIDEO, frame_interval=2) == {"score": 0.75, "rating": 4.0}
    asked = [picture_of(body) for body in server.received]
    for places, frames in (((0, 4), asked[:2]), ((0, 2, 4), asked[2:])):
        expected = [VIDEO[number].permute(1, 2, 0).numpy() for number in places]
        assert all(any((image == frame).all() for image in frames) for frame in expected) and len(frames) == len(places)


async def test_the_text_of_a_video_is_that_of_the_frames_that_show_some(serve: Serve) -> None:
    server = serve(says("OPEN"), says(""), says("OPXX"), says(""))
    answer = await ask("genrm_ocr", server, sample=VIDEO[:4], frame_interval=1)
    assert answer == {"score": 0.75, "exact": 0.25, "cut": 0.0}
    server = serve(says("nothing like it"), says(""))
    assert (await ask("genrm_ocr", server, sample=VIDEO[:2], frame_interval=1))["score"] == 0


@pytest.mark.parametrize("several", [False, True])
async def test_verls_reward_router_is_the_judge_unless_another_is_given(
    serve: Serve, settings: Callable[..., DictConfig], sample: Callable[..., DataProto], several: bool
) -> None:
    server = serve(*[says("OPEN")] * 3)
    reward: dict[str, Any] = {"reward_model": {"enable": True, "model_path": "router-model"}}
    chosen = {"reward_functions": {"ocr": {"name": "genrm_ocr"}}} if several else {"scorer": "genrm_ocr"}
    kind = MultiVisualRewardManager if several else VisualRewardManager
    manager = kind(settings(**chosen, **reward), None, None, reward_router_address=server.address)
    rows = [sample(reward_model={"ground_truth": "open"}, extra_info={"prompt": "a sign"}) for _ in range(3)]
    results = await asyncio.gather(*[manager.run_single(row) for row in rows])
    assert [result["reward_score"] for result in results] == [1.0] * 3
    assert server.received[0]["model"] == "router-model"


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({}, ["base_url: must be given", "model: must be given"]),
        ({"base_url": "judge:80", "model": "m"}, ["base_url: judge:80 has the wrong format: The judge's URL"]),
        ({"base_url": "http://j/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"}, ["api_key_env: the environment"]),
        (
            {"base_url": "http://j/v1", "model": "m", "template": "Rate it."},
            ["template: Rate it. has the wrong format"],
        ),
        ({"base_url": "http://j/v1", "model": "m", "lowest": 5}, ["lowest: 5 must be less than highest (5)"]),
        ({"base_url": "http://j/v1", "model": "m", "template": "Rate {prompt}."}, []),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(options: dict[str, Any], messages: list[str]) -> None:
    problems = rewards.setting_problems("unified_reward", options)
    assert len(problems) == len(messages)
    assert all(problem.startswith(begin) for problem, begin in zip(problems, messages, strict=True))


@pytest.mark.parametrize("begin", [b"X-Slow: ", b"Content-Length: 9999\r\n\r\n"])
@pytest.mark.parametrize("kind", ["judge", "reward server"])
async def test_the_timeout_counts_the_whole_answer_with_its_headers(begin: bytes, kind: str) -> None:
    ended = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + begin)
        try:
            while not ended.is_set():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        url = f"http://{host}:{port}"
        judge = judge_client.Judge(url, "vlm", None, timeout=0.2, attempts=1, max_tokens=8)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(
                    (JudgeError, reward_server.RewardServerError), match=r"the answer was not complete after 0\.2 s"
                ):
                    await (
                        judge.ask(PICTURE, "?")
                        if kind == "judge"
                        else asyncio.to_thread(
                            reward_server.request, url, {}, timeout=0.2, attempts=1, retry_backoff=1.0
                        )
                    )
        finally:
            ended.set()
            await disconnect()
            await asyncio.to_thread(http_exchange.disconnect_threads)


def brightest(body: dict[str, Any]) -> str:
    """The answer of a judge that prefers the brighter of two images, and names none if both are equally bright."""
    first, second = (float(picture_of(body, number).mean()) for number in (0, 1))
    return "No difference." if first == second else f"Brighter.\nBetter: {1 if first > second else 2}"


async def test_the_win_rate_is_the_share_of_a_prompts_samples_that_the_judge_finds_worse(serve: Serve) -> None:
    server = serve(lambda body: says(brightest(body)))
    levels = {"a": [90, 10, 50], "b": [7, 7], "c": [200]}
    groups = [group for group, shades in levels.items() for _ in shades]
    images = [torch.full((3, 4, 4), level, dtype=torch.uint8) for shades in levels.values() for level in shades]
    infos = [{"prompt": f"prompt {group}"} for group in groups]
    rates = await rewards.get_scorer("win_rate")(
        groups, images, groups, infos, groups, base_url=f"http://{server.address}/v1", model="vlm"
    )
    assert [rate and rate["score"] for rate in rates] == [1.0, 0.0, 0.5, None, None, 0.5]
    assert [rate and rate["compared"] for rate in rates] == [1.0, 1.0, 1.0, None, None, 0.0]
    assert len(server.received) == 4, "three pairs of a, one of b"
    questions = [body["messages"][0]["content"][2]["text"] for body in server.received]
    assert sum("Caption: prompt a\n" in question for question in questions) == 3


async def test_a_win_rate_is_of_images() -> None:
    video = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"takes images.*\[4, 3, 8, 8\]"):
        await rewards.get_scorer("win_rate")(["a"], [video], ["a"], [{}], ["a"], base_url="http://judge/v1", model="m")


@pytest.mark.parametrize("samples", [2, 5, 8])
def test_a_sample_is_first_in_about_half_of_its_pairs(samples: int) -> None:
    pairs = pairs_of(["a"] * samples)
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == samples * (samples - 1) // 2
    firsts = [sum(first == sample for first, _ in pairs) for sample in range(samples)]
    assert all(abs(first - (samples - 1) / 2) <= 1 for first in firsts)


@pytest.mark.parametrize(
    ("text", "cut", "named"),
    [
        ("Better: 2", False, 2),
        ("The first is better: 1?\n**Better: 2**", False, 2),
        ("1", False, 1),
        ("Better image: 1.", False, 1),
        ("Both are good.", False, None),
        ("Better: 12", False, None),
        ("Better: 1.5", False, None),
        ("Better: 1", True, None),
    ],
)
def test_the_better_of_two_images(text: str, cut: bool, named: int | None) -> None:
    assert better_of_two(JudgeAnswer(text, cut)) == named
