"""Settings of scorers, found in functions and in source that is not run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from verl_omni.reward_loop.rewards import SCORERS, get_scorer
from verl_omni.reward_loop.scorer_signature import Signature, signature_in_source, signature_of

SOURCE = """
import a_module_that_is_not_installed

def judge(data_source, solution_image, ground_truth, extra_info, factor, depth=3, *, model_name=None, scale=1.0):
    return 1.0

@cached
def hidden(solution_image):
    return 1.0

alias = judge
"""


def judge(
    data_source: str,
    solution_image: Any,
    ground_truth: Any,
    extra_info: Any,
    factor: float,
    depth: int = 3,
    *,
    model_name: str | None = None,
    scale: float = 1.0,
) -> float:
    return 1.0


def test_a_function_and_its_source_have_the_same_signature() -> None:
    expected = Signature(frozenset({"factor", "depth", "scale"}), frozenset({"factor"}), open_ended=False)
    assert signature_of(judge) == signature_in_source(SOURCE, "judge") == expected


@pytest.mark.parametrize("name", ["hidden", "alias", "absent"])
def test_a_function_that_is_not_a_plain_definition_is_not_checked(name: str) -> None:
    assert signature_in_source(SOURCE, name) is None


@pytest.mark.parametrize("scorer", [name for name in SCORERS if name != "python"])
def test_every_scorer_of_the_project_refuses_unknown_settings(scorer: str) -> None:
    signature = signature_of(get_scorer(scorer))
    assert not signature.open_ended
    assert len(signature.problems([*signature.required, "no_such_setting"])) == 1


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("def f(solution_image): yield 1.0", ["it has a `yield`"]),
        ("async def f(solution_image):\n  if True:\n    x = yield", ["it has a `yield`"]),
        ("def f(solution_image):\n  yield from [1.0]", ["it has a `yield`"]),
        ("def f(solution_image):\n  def inner(): yield 1.0\n  return next(inner())", []),
        ("def f(solution_image):\n  return sum(x for x in [1.0])", []),
        ("def f(solution_image, /, factor=1.0): ...", ["the parameters solution_image are before a `/`"]),
        (
            "def f(data_source, factor=2.0, /, *, solution_image): ...",
            ["the parameters data_source, factor are before"],
        ),
        ("def f(solution_image, /): yield 1.0", ["the parameters solution_image are", "it has a `yield`"]),
    ],
)
def test_a_function_that_no_call_makes_score_is_named_in_a_function_and_in_its_source(
    source: str, messages: list[str]
) -> None:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    signature = signature_in_source(source, "f")
    assert signature is not None and signature == signature_of(namespace["f"]) == signature_of(
        partial(wrapper, namespace["f"], {})
    )
    problems = signature.function_problems()
    assert all(problem.startswith(start) for problem, start in zip(problems, messages, strict=True))


def wrapper(function: Callable[..., Any], extra: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs, **extra)


def test_a_setting_before_a_slash_is_not_one_that_a_job_may_give() -> None:
    signature = signature_in_source("def f(solution_image, a, b=1, /, c=2): ...", "f")
    assert signature is not None and (signature.settings, signature.required) == ({"c"}, frozenset())
