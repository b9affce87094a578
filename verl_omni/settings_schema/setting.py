"""PURE: a setting, and the checks of a value that need no other setting."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """Type of a setting's values, with what to write."""

    NUMBER = "a number"
    WHOLE = "a whole number, such as 8"
    SWITCH = "true or false"
    PAIR = "two numbers"
    PATH = "a path"
    PATHS = "a path, or a list of paths such as [first.jsonl,second.jsonl]"


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on a number.

    Attributes:
        text: what the number must be, e.g. `must be positive`.
        advice: what to write instead, or why.
    """

    text: str
    holds: Callable[[float], bool]
    advice: str = ""

    def problem(self, value: float) -> str | None:
        """What is wrong with a value; None: nothing."""
        if self.holds(value):
            return None
        # The engine's settings are converted to floats before this, and a job's are not.
        shown = int(value) if isinstance(value, float) and value.is_integer() else value
        return f"{self.text}: {shown}" + (f"; {self.advice}" if self.advice else "")


def broken_limit(limits: Iterable[Limit], value: Any) -> str | None:
    """What is wrong with a number, by the first limit that does not hold; None: nothing, or the value is no number."""
    if not is_number(value):
        return None
    return next((text for limit in limits if (text := limit.problem(value))), None)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a setting besides its default.

    Attributes:
        field: the job's field that sets it, so that overrides may not.
        kind: for a setting whose default does not show it, or that has none.
        nullable: whether it may be null; None: if its default is null, or its group is one of `NULLABLE_GROUPS`.
        limits: of a number, checked in this order.
        values: the only values; empty: all of its type.
        advice: why the other values are refused, or what to do instead; for a pair, an example.
    """

    name: str
    field: str | None = None
    kind: Kind | None = None
    nullable: bool | None = None
    limits: tuple[Limit, ...] = ()
    values: tuple[Any, ...] = ()
    advice: str = ""

    def accepts(self, value: Any, registered: tuple[Any, ...] = ()) -> bool:
        """Whether a value is one of `values`, or of those that modules of users registered. 1 is not true."""
        return any(value == choice and isinstance(value, type(choice)) for choice in (*self.values, *registered))


def fits(kind: Kind, value: Any) -> bool:
    """Whether a value that is not null has a type. A switch may be written as 0 or 1."""
    match kind:
        case Kind.NUMBER:
            return is_number(value)
        case Kind.WHOLE:
            return isinstance(value, int) and not isinstance(value, bool)
        case Kind.SWITCH:
            return isinstance(value, bool) or (is_number(value) and value in (0, 1))
        case Kind.PAIR:
            return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
        case Kind.PATH:
            return isinstance(value, str) and bool(value)
        case Kind.PATHS:
            files = value if isinstance(value, list) else [value]
            return bool(files) and all(isinstance(file, str) and file for file in files)


def refusal(value: Any, instead: str) -> str:
    """Message about a value that is not supported.

    Args:
        instead: what to write.
    """
    if value == "":
        return f"has no value, such as from an empty variable of a script; write {instead}"
    return f"{plain_value(value)} is not supported; write {instead}"


def refused_choice(value: Any, choices: tuple[Any, ...], advice: str) -> str:
    """Message about a value that is none of `choices`."""
    return refusal(value, f"{' or '.join(map(plain_value, choices))}: {advice}")


def refused_type(value: Any, instead: str) -> str:
    """Message about a value of another type: a text is shown in quotes."""
    if isinstance(value, str) and value:
        return f"the text {value!r} is not supported; write {instead}"
    return refusal(value, instead)


def is_number(value: Any) -> bool:
    """Whether a value is an integer or a float; a switch is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain_value(value: Any) -> str:
    """A value as users write it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(plain_value, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
