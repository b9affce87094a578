"""Results and errors of scorers: what is a score, and what is refused with the scorer's name."""

import asyncio
import concurrent.futures
import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle

from tests.ml.reward_loop.managers import Sample, Settings, multi, visual
from verl_omni.reward_loop.scorer_parts import LoadedScorer
from verl_omni.reward_loop.scorer_results import FAILURE, failures_allowed


class UnpicklableError(Exception):
    """An error that does not fit through Ray."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def unawaited() -> float:
    return 1.0


UNUSABLE: list[tuple[Callable[[], Any], str]] = [
    (lambda: float("nan"), "ValueError: the scorer returned nan, which is not finite"),
    (lambda: {"score": float("inf")}, "returned inf, which is not finite"),
    (lambda: 1e300, r"returned 1e\+300, which is not finite in fp32"),
    (lambda: 10**400, r"returned no number \(OverflowError"),
    (lambda: None, "returned None: no score for this sample"),
    (lambda: {"score": None}, "returned None: no score for this sample"),
    (lambda: "good", r"returned no number \(ValueError: could not convert string to float: 'good'\)"),
    (lambda: [0.5], r"returned no number \(list\)"),
    (lambda: (number for number in [0.5]), r"returned no number \(generator\)"),
    (lambda: np.array([0.5, 1.0]), "returned 2 values for one sample"),
    (lambda: torch.ones(0), "returned 0 values for one sample"),
    (lambda: torch.ones((), device="meta"), r"returned no number \(RuntimeError: .*meta"),
    (unawaited, "returned a coroutine: define the function itself with `async def`"),
    (lambda: {"value": 1.0, 2: 3}, r"has no 'score'; it has \['2', 'value'\]"),
    (lambda: {"score": 1.0, 2: 3}, "has the key 2, which is no text"),
    (lambda: {"score": 1.0, "x": threading.Lock()}, r"field 'x' \(lock\) cannot be sent to another process: TypeError"),
    (lambda: {"score": 1.0, "x": [torch.ones(2, device="meta")]}, "field 'x' .* cannot be sent to another process"),
]
RAISED: list[tuple[BaseException, str]] = [
    (UnpicklableError("no memory"), "UnpicklableError: no memory"),
    (UnprintableError(), r"UnprintableError \(its text is not available: ValueError\)"),
    (RuntimeError("bad \udcff"), r"RuntimeError: bad \\udcff"),
    (RuntimeError("x" * 10_000), r"RuntimeError: x{1900,2000}… \(10014 characters\)"),
    (StopIteration("end"), "ForbiddenRaise: it raised StopIteration: end; raise another exception, or return a score"),
    (SystemExit(3), "it raised SystemExit: 3; raise another"),
    (KeyboardInterrupt(), "it raised KeyboardInterrupt; raise another"),
    (GeneratorExit(), "it raised GeneratorExit; raise another"),
    (asyncio.CancelledError(), "it raised CancelledError; raise another"),
    (concurrent.futures.CancelledError(), "it raised CancelledError; raise another"),
]
AWAITED = (SystemExit, KeyboardInterrupt, asyncio.CancelledError)


async def failure(settings: Settings, sample: Sample, judge: Any, several: bool) -> str:
    """The failure of a user's function, as Ray passes it on."""
    if several:
        manager = multi(settings(reward_functions={"mine": {"name": "brightness"}}))
        manager.parts[0] = replace(manager.parts[0], scorer=LoadedScorer(judge, {}))
    else:
        manager = visual(settings(custom_reward_function={"path": "mine.py", "name": "judge"}), judge)
    async with asyncio.timeout(30):
        result = cloudpickle.loads(cloudpickle.dumps(await manager.run_single(sample())))
    assert math.isnan(result["reward_score"]) and result["reward_extra_info"] == {}
    text: str = result[FAILURE].text
    assert text.startswith("reward 'mine' failed: " if several else "scorer mine.py:judge failed: ")
    return text


@pytest.mark.parametrize(("answer", "message"), UNUSABLE)
@pytest.mark.parametrize("several", [False, True])
async def test_a_result_that_is_no_score_is_a_failure_with_the_name_of_the_scorer(
    settings: Settings, sample: Sample, answer: Callable[[], Any], message: str, several: bool
) -> None:
    def judge(data_source: str, solution_image: Any, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        return answer()

    assert re.search(message, await failure(settings, sample, judge, several))


@pytest.mark.parametrize(
    ("error", "message", "awaited"),
    [*((*case, False) for case in RAISED), *((*case, True) for case in RAISED if isinstance(case[0], AWAITED))],
)
async def test_whatever_a_scorer_raises_arrives_as_text_with_its_name(
    settings: Settings, sample: Sample, error: BaseException, message: str, awaited: bool
) -> None:
    def judge(data_source: str, solution_image: Any, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        raise error

    async def late(data_source: str, solution_image: Any, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        raise error

    assert re.search(message, await failure(settings, sample, late if awaited else judge, several=False))


@pytest.mark.parametrize(
    "answer",
    [np.float32(0.5), np.array(0.5), np.array([0.5]), torch.tensor(0.5, requires_grad=True), "0.5"],
)
async def test_numbers_of_every_library_are_scores(settings: Settings, sample: Sample, answer: Any) -> None:
    config = settings(custom_reward_function={"path": "mine.py", "name": "judge"})

    def judge(data_source: str, solution_image: Any, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        return {"score": answer, "detail": answer}

    assert (await visual(config, judge).run_single(sample()))["reward_score"] == 0.5


async def test_fields_arrive_without_gradients_and_in_host_memory(settings: Settings, sample: Sample) -> None:
    def judge(data_source: str, solution_image: Any, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        row = torch.ones(2, requires_grad=True)
        return {"score": 1, "one": row.sum(), "number": np.float32(0.5), "row": row, "nested": {"rows": [row]}}

    config = settings(custom_reward_function={"path": "mine.py", "name": "judge"})
    fields = (await visual(config, judge).run_single(sample()))["reward_extra_info"]
    assert fields["one"] == 2.0 and type(fields["one"]) is type(fields["number"]) is float
    assert not fields["row"].requires_grad and not fields["nested"]["rows"][0].requires_grad


@pytest.mark.parametrize(
    ("samples", "share", "allowed"),
    [(64, 0.1, 7), (8, 0.1, 1), (30, 0.1, 3), (2, 0.1, 1), (1, 0.1, 0), (8, 0.0, 0), (8, 1.0, 7), (10, 0.5, 5)],
)
def test_the_share_is_rounded_up_but_never_all_samples(samples: int, share: float, allowed: int) -> None:
    assert failures_allowed(samples, share) == allowed
