"""`Result`: what one check of a device found."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from verl_omni.utils.root_cause import root_cause

Check = Callable[[], str]  # returns what it found; raises if something is wrong


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one check, or the reason for its failure."""

    name: str
    passed: bool
    text: str
    seconds: float


class CheckFailed(RuntimeError):
    """The device does not do what a training needs; the message has the value found and the value expected."""


def require(condition: bool, text: str) -> None:
    """Fail the check unless the condition holds.

    Raises:
        CheckFailed: with this text.
    """
    if not condition:
        raise CheckFailed(text)


def run(checks: Mapping[str, Check], needed: Collection[str]) -> Iterator[Result]:
    """Run checks one after the other, each with its result as soon as it ends.

    Args:
        needed: names of the checks that all later ones need: a failure of one ends them.
    """
    for name, check in checks.items():
        began = time.monotonic()
        try:
            text = check()
            passed = True
        except Exception as error:  # noqa: BLE001  the program's own result is which checks fail, and why
            cause = root_cause(error)
            text = f"{type(cause).__name__}: {cause}"
            passed = False
        yield Result(name, passed, text, time.monotonic() - began)
        if name in needed and not passed:
            return
