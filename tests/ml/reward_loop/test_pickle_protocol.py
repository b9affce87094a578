"""The scorers `http` and `http_batch` with servers that speak pickle."""

import io
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.ml.reward_loop.stub_server import Serve, Server
from verl_omni.reward_loop import pickled_messages, rewards
from verl_omni.reward_loop.reward_server import RewardServerError

GRAY = torch.full((3, 16, 16), 128, dtype=torch.uint8)


def score(server: Server, image: torch.Tensor = GRAY, **settings: Any) -> Any:
    info = {"prompt": "a prompt"}
    request = {"url": f"http://{server.address}/", "protocol": "pickle", **settings}
    return rewards.get_scorer("http")("d", image, "the truth", info, **request)


def test_a_request_is_that_of_the_references_client(serve: Serve) -> None:
    server = serve((200, pickle.dumps({"scores": [0.25]})))
    assert score(server) == {"score": 0.25}
    sent = pickle.loads(server.received[0])
    assert sent.keys() == {"images", "prompts", "metadata"}
    assert (sent["prompts"], sent["metadata"]) == (["the truth"], {})
    image = Image.open(io.BytesIO(sent["images"][0]))
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (16, 16))
    assert np.abs(np.asarray(image).astype(int) - 128).max() <= 1


def test_a_batch_is_one_request(serve: Serve) -> None:
    server = serve((200, pickle.dumps({"scores": [0.25, 1, 3.5]})))
    lists: list[list[Any]] = [["d"] * 3, [GRAY] * 3, ["a", "b", "c"], [{"prompt": "p"}] * 3]
    results = rewards.get_scorer("http_batch")(*lists, url=f"http://{server.address}/", protocol="pickle")
    assert results == [{"score": 0.25}, {"score": 1.0}, {"score": 3.5}]
    sent = pickle.loads(server.received[0])
    assert sent["prompts"] == ["a", "b", "c"] and len(sent["images"]) == 3


@pytest.mark.parametrize(
    "scores", [np.array([0.5], np.float32), [np.float32(0.5)], (np.float64(0.5),), [np.array([0.5])]]
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_scores_may_be_of_numpy(serve: Serve, scores: Any, protocol: int) -> None:
    assert score(serve((200, pickle.dumps({"scores": scores}, protocol)))) == {"score": 0.5}


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_an_answer_that_would_run_code_is_refused_and_runs_none(serve: Serve, tmp_path: Path) -> None:
    body = pickle.dumps({"scores": [Harmful(tmp_path / "made")]})
    with pytest.raises(RewardServerError, match=r"names (posix|os)\.mkdir, and may only have plain values"):
        score(serve((200, body)))
    assert not (tmp_path / "made").exists()
    pickle.loads(body)
    assert (tmp_path / "made").exists()  # the harm is real


class Made:
    """A value that an answer makes by calling a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


class Described(Made):
    """The same, with a state that describes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        function, (state, *arguments) = self.made
        return function, tuple(arguments), state


ADDRESS = b"A" * 8  # which a forged array has as the address of an object
FORGED = {
    "a type that hides its objects": ((3, "|", None, None, None, -1, -1, 0), "O8", False, True),
    "a type with a field of objects": ((3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0), "V8", False, True),
}


@pytest.mark.parametrize("described", FORGED.values(), ids=FORGED)
def test_an_answer_cannot_say_where_in_memory_a_value_is(serve: Serve, described: Any) -> None:
    kind = Described(np.dtype, *described)
    array = Described(np._core.multiarray._reconstruct, (1, (1,), kind, False, ADDRESS), np.ndarray, (0,), b"b")  # type: ignore[attr-defined]
    with pytest.raises(RewardServerError, match=r"an array of '[OV]8', and may only have arrays of numbers"):
        score(serve((200, pickle.dumps({"scores": array}))))


@pytest.mark.parametrize(
    "made",
    [
        Made(np.ndarray, (2**20,)),
        Made(np._core.multiarray.scalar, np.dtype("S1000000")),  # type: ignore[attr-defined]
        Described(np._core.multiarray._reconstruct, (1, (2**20,), np.dtype("u1"), False, b"x"), np.ndarray, (0,), b"b"),  # type: ignore[attr-defined]
    ],
    ids=["an array", "a number", "an array without its values"],
)
def test_an_answer_cannot_make_what_it_does_not_hold(serve: Serve, made: Any) -> None:
    with pytest.raises(RewardServerError, match=r"the answer (is no pickle .*not callable|has an array)"):
        score(serve((200, pickle.dumps({"scores": made}))))


def many_times(depth: int) -> Any:
    """A list that is 10 ** depth times in the text of the value."""
    nested: Any = ["scored"]
    for _ in range(depth):
        nested = [nested] * 10
    return nested


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\x02Nr" + (2**22).to_bytes(4, "little") + b".",  # None as value number 2 ** 22
        pickle.dumps({"scores": many_times(6)}),
        pickle.dumps({"error": many_times(6)}),
        pickle.dumps({"scores": [many_times(6)]}),
    ],
    ids=["a number of a value", "one list many times", "an error", "a score"],
)
def test_an_answer_takes_little_more_memory_than_it_has_bytes(serve: Serve, body: bytes) -> None:
    server = serve((200, body))
    tracemalloc.start()
    try:
        with pytest.raises(RewardServerError, match=r"the answer has no 1 'scores'|a score is no number"):
            score(server)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_an_answer_changes_nothing_for_the_next_one() -> None:
    for name, attribute in ((b"numpy\ndtype", "__code__"), (b"numpy.core.multiarray\nscalar", "__defaults__")):
        with pytest.raises(pickled_messages.PickleRefused):
            pickled_messages.decode(b"\x80\x02c" + name + b"\n" + pickle.dumps((None, {attribute: 1}), 2)[2:-1] + b"b.")
    assert pickled_messages.decode(pickle.dumps([np.float32(0.5)])) == [0.5]


@pytest.mark.parametrize("status", [500, 200])
def test_the_servers_error_is_shown_by_its_last_line(serve: Serve, status: int) -> None:
    trace = "Traceback (most recent call last):\n" + "  File x\n" * 40 + "KeyError: 'images'\n"
    server = serve(*[(status, pickle.dumps({"error": trace}))] * 2)
    with pytest.raises(RewardServerError, match=rf"status {status}: KeyError: 'images', in each of 2 attempts"):
        score(server, attempts=2)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>", "the answer is no pickle"),
        (200, b"", "the answer is no pickle"),
        (200, pickle.dumps({"scores": []}), "the answer has no 1 'scores'"),
        (200, pickle.dumps({"outputs": [1.0]}), r"the answer has no 1 'scores': \{'outputs': \[1.0\]\}"),
        (200, pickle.dumps([1.0]), "the answer has no 1 'scores'"),
        (200, pickle.dumps({"scores": ["high"]}), "a score is no number"),
        (200, pickle.dumps({"scores": [float("nan")]}), "has the score nan, which is not finite in fp32"),
        (200, pickle.dumps({"scores": [10**400]}), "a score is too large: "),
        (404, b"not here", "status 404: not here"),
    ],
)
def test_an_answer_without_a_score_fails_at_once(serve: Serve, status: int, body: bytes, message: str) -> None:
    with pytest.raises(RewardServerError, match=message):
        score(serve((status, body)))


def test_a_video_and_an_unknown_protocol_are_refused(serve: Serve) -> None:
    with pytest.raises(ValueError, match=r"images \[3, H, W\] only, and this is a video \[2, 3, 16, 16\]"):
        score(serve(), torch.stack([GRAY, GRAY]))
    for name in ("http", "http_batch"):
        problems = rewards.setting_problems(name, {"url": "http://x", "protocol": "grpc"})
        assert problems == ["protocol: grpc is not one of json, pickle"]
        assert rewards.setting_problems(name, {"protocol": "pickle"}) == []


def test_plain_values_survive() -> None:
    values = {"a": [1, 2.5, None, True, "x", b"y", (1, {2})], "n": np.arange(6, dtype="<f4").reshape(2, 3)}
    decoded = pickled_messages.decode(pickle.dumps(values))
    assert decoded["a"] == values["a"] and (decoded["n"] == values["n"]).all()
