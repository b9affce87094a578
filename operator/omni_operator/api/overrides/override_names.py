"""PURE: checks of overrides, without the trainer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from omni_operator.api.suggestions import nearest_setting

from .reserved import owner_of
from .setting_names import BY_LOSS, COMMON, ELSEWHERE, EMPTY_GROUPS, OPEN, REJECTED, REQUIRED, WITHOUT_EFFECT

DEFAULT_LOSS = "flow_grpo"
CORRECTION = "algorithm.rollout_correction"
ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni"
BYPASS = f"{CORRECTION}.bypass_mode"
_WORDS = {"true": True, "false": False, "null": None}
_REJECTED = {name: (accepted, advice) for accepted, advice, names in REJECTED for name in names}


def setting_here(name: str) -> str:
    """The setting that has the value of an override here.

    Settings of the engine may be spelled with hyphens, and some of the reference have other names.
    """
    if name.startswith(f"{ENGINE}."):
        own, dot, inner = name.removeprefix(f"{ENGINE}.").partition(".")
        name = f"{ENGINE}.{own.replace('-', '_')}{dot}{inner}"
    return ELSEWHERE.get(name, name)


def describe_reserved(name: str) -> str | None:
    """Why an override may not set `name`, whichever trainer runs; None if it may."""
    owner = owner_of(setting_here(name))
    return f"{name} is reserved: {owner} sets it" if owner else None


def describe_unsupported(name: str, value: str, loss: str | None) -> str | None:
    """Why the project's trainer refuses the name or the value of `<name>=<value>`; None if it refuses neither.

    Hydra's marks before the name, `+` and `++`, change nothing.

    Args:
        loss: the trainer's name of the algorithm; None if it is not known, or one of the user's.
    """
    if name.startswith(f"{ENGINE}."):
        name = setting_here(name)
    if name == ENGINE and value.lstrip().startswith("{"):
        inner = (describe_unsupported(f"{ENGINE}.{own}", "null", loss) for own in _names_in(value))
        return next((text for text in inner if text), None)
    if name not in _REJECTED and any(name.startswith(f"{group}.") for group in OPEN):
        return None
    known = {*COMMON, *BY_LOSS[loss or DEFAULT_LOSS]}
    rule = name if name in known else _reference_rule(name)
    if rule is not None:
        setting = ELSEWHERE.get(rule, rule)
        rejected = _describe_rejected(name, value, *_REJECTED[setting]) if setting in _REJECTED else None
        return rejected or _describe_conflict(setting, value, loss)
    if any(name in names for names in BY_LOSS.values()):
        return None  # the trainer names it as a setting that this algorithm does not read
    rollout = "actor_rollout_ref.rollout."
    of_samples = (each for each in known if each.startswith((f"{rollout}pipeline.", f"{rollout}algo.")))
    of_evaluations = (f"{rollout}val_kwargs.{each.removeprefix(rollout)}" for each in of_samples)
    near = nearest_setting(name, {*known, *of_evaluations})
    return f"the trainer has no setting {name}" + (f"; did you mean {near!r}?" if near else "")


def limits_older_samples(loss: str | None) -> bool:
    """Whether a loss can take its ratio to the policy that generated a sample (`BYPASS`), and clip it.

    Args:
        loss: the trainer's name of the algorithm; None if it is one of the user's.
    """
    return loss is not None and describe_unsupported(BYPASS, "true", loss) is None


def has_no_effect(name: str) -> bool:
    """Whether a setting of the reference does nothing here."""
    return name not in COMMON and _reference_rule(setting_here(name)) in WITHOUT_EFFECT


def _names_in(mapping: str) -> Iterator[str]:
    """Names in the text of a mapping, not those in mappings inside it."""
    text = mapping.strip().removeprefix("{").removesuffix("}")
    while (flat := re.sub(r"\{[^{}]*\}", "", text)) != text:
        text = flat
    yield from re.findall(r"(?:^|,)\s*([A-Za-z_][A-Za-z0-9_-]*)\s*:", text)


def _reference_rule(name: str) -> str | None:
    """The longest name among the reference's settings that matches; None if it has none, or it exists here."""
    parts = name.split(".")
    candidates = [name, *(".".join(parts[:count]) + ".*" for count in range(len(parts), 0, -1))]
    return next((one for one in candidates if one in ELSEWHERE or one in WITHOUT_EFFECT or one in _REJECTED), None)


def _describe_rejected(name: str, value: str, accepted: list[object], advice: str) -> str | None:
    if "${" in value:  # the value of another setting
        return None
    parsed = parse_value(value)
    if parsed is None and name in EMPTY_GROUPS:  # null is an empty group to the trainer
        return None
    if any(parsed == other and isinstance(parsed, bool) == isinstance(other, bool) for other in accepted):
        return None
    values = " or ".join(_plain(other) for other in accepted)
    return f"{name}={value} is not supported; write {values}: {advice}"


def _describe_conflict(name: str, value: str, loss: str | None) -> str | None:
    """Why the algorithm cannot use a supported value, in the trainer's words."""
    if "${" in value:
        return None
    for setting, needed, reason, losses in REQUIRED:
        if setting == name and loss in losses and (parsed := parse_value(value)) != needed:
            return f"{name}: {_plain(parsed)} does not go with {loss}: {reason}; it needs {_plain(needed)}"
    return None


def parse_value(text: str) -> Any:
    """A value as the trainer reads it: YAML's, and numbers like 1e-5, which are text in YAML 1.1."""
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[1-9][0-9]*|0", text):
        return int(text)
    import yaml  # most values that are compared are words and whole numbers, for which PyYAML is not worth its import

    with contextlib.suppress(ValueError):
        return yaml.safe_load(text) if text.strip().lstrip("+-").isdigit() else float(text)
    with contextlib.suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text


def _plain(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
