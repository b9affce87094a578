"""One line of text for errors that crossed Ray's processes."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from verl_omni.utils.root_cause import after_traceback, describe_error, root_cause


def raised(error: Exception) -> RayTaskError:
    trace = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n{type(error).__name__}: {error}'
    return RayTaskError("Worker.f", trace, error)


def wrapped(error: Exception) -> Exception:
    """As the caller of a task sees it."""
    return raised(error).as_instanceof_cause()  # type: ignore[no-any-return]


def test_the_cause_is_found_behind_two_processes() -> None:
    inner = ValueError("unknown color 'mauve'")
    assert root_cause(wrapped(wrapped(inner))) is inner
    assert describe_error(wrapped(wrapped(inner))) == "ValueError: unknown color 'mauve'"


def test_a_translated_error_is_not_replaced_by_its_cause() -> None:
    try:
        try:
            raise OSError("refused")
        except OSError as error:
            raise RuntimeError("http://scorer: the reward server is away") from error
    except RuntimeError as translated:
        assert root_cause(translated) is translated


def test_an_actor_that_failed_in_its_constructor_is_described_by_its_error() -> None:
    died = ActorDiedError(raised(ValueError("no module 'mine'\nsecond line")))
    assert describe_error(died) == "ValueError: no module 'mine'\nsecond line"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('Traceback:\n  File "a.py", line 3, in f\n    g()\n    ^^^\nmine.Odd: one\ntwo', "mine.Odd: one\ntwo"),
        ("no traceback at all", "no traceback at all"),
    ],
)
def test_what_follows_the_last_frame(text: str, end: str) -> None:
    assert after_traceback(text) == end


def test_an_error_without_a_message_has_its_type() -> None:
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"
