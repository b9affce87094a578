"""PURE: suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is most similar to `name`, ignoring case; None if none is similar."""
    by_lower = {choice.lower(): choice for choice in valid}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    near = nearest(name, valid)
    return f"; did you mean {near!r}?" if near else ""
