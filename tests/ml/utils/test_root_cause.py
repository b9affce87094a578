"""One line of text for errors that crossed Ray's processes."""

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError

from verl_omni.utils.root_cause import after_traceback, describe_error, lost_actor, root_cause


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


EXIT = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file."
)
ADVICE = (
    " Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop "
    "--force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error."
)


def test_an_actor_that_was_killed_is_described_on_one_line_that_blames_nothing() -> None:
    context = ActorDiedErrorContext(
        error_message=EXIT + ADVICE,
        actor_id=bytes(16),
        class_name="vLLMOmniHttpServer",
        pid=20746,
        name="vllm_omni_server_0_0",
        ray_namespace="efe2bef5",
        node_ip_address="10.0.0.3",
    )
    assert describe_error(ActorDiedError(context)) == (
        "ActorDiedError: The actor died unexpectedly before finishing this task (vLLMOmniHttpServer, pid 20746, "
        f"ip 10.0.0.3). {EXIT}"
    )
    assert describe_error(ActorDiedError()) == f"ActorDiedError: {ActorDiedError.BASE_ERROR_MSG}"


def test_what_ray_says_of_a_lost_node_is_kept() -> None:
    text = "The actor died.\n\tclass_name: A\nIts node has died.\n\tit got SIGTERM\nThe actor never ran."
    assert lost_actor(text) == "The actor died (A). Its node has died. it got SIGTERM The actor never ran."
    assert lost_actor("The actor ab is unavailable: no answer.") == "The actor ab is unavailable: no answer."
    assert lost_actor("") == ""


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
