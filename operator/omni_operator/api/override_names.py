"""PURE: checks of the names of overrides, without the trainer."""

from __future__ import annotations

from .reserved import owner_of
from .setting_names import BY_LOSS, COMMON, OPEN
from .suggestions import nearest

DEFAULT_LOSS = "flow_grpo"


def describe_reserved(name: str) -> str | None:
    """Why an override may not set `name`, whichever trainer runs; None if it may."""
    owner = owner_of(name)
    return f"{name} is reserved: {owner} sets it" if owner else None


def describe_unknown(mark: str, name: str, loss: str) -> str | None:
    """Why the project's trainer would refuse `<mark><name>=...`; None if it would not.

    Args:
        mark: Hydra's mark before the name: empty, `+` or `++`.
        loss: the trainer's name of the algorithm.
    """
    if any(name.startswith(f"{group}.") for group in OPEN):
        return None
    known = {*COMMON, *BY_LOSS[loss]}
    if name in known:
        return f"the setting {name} exists: write {name}=... without '+'" if mark == "+" else None
    if others := [other for other, names in BY_LOSS.items() if name in names]:
        return f"{name} is a setting of {' and '.join(others)}, and this job runs {loss}"
    near = nearest(name, known) or next((one for one in sorted(known) if _last(one) == _last(name)), None)
    return f"the trainer has no setting {name}" + (f"; did you mean {near!r}?" if near else "")


def _last(name: str) -> str:
    return name.rpartition(".")[2]
