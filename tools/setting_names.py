"""Names of the trainer's settings, as a file of the operator, which checks overrides without the trainer.

    python -m tools.setting_names [--check]

`--check` writes nothing and fails where the file does not match the trainer's configuration.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tools.generated_file import write_or_check
from verl_omni.trainer.settings import number_ranges, setting_groups, value_types
from verl_omni.trainer.settings.configuration import OPEN, defaults
from verl_omni.trainer.settings.registered_names import DEFAULT_LOOP
from verl_omni.trainer.settings.supported_values import SUPPORTED
from verl_omni.trainer.settings.unused_values import KL, LOG_PROBS
from verl_omni.utils import engine_settings
from verl_omni.utils.reference_settings import Copied, Rejected, Renamed, WithoutEffect, rules
from verl_omni.verl_names import AGENT_LOOP
from verl_omni.workers.algorithms.registered import ALGORITHMS

FILE = Path("operator/omni_operator/api/overrides/setting_names.json")
SOURCE = "Written from verl_omni/trainer/config by `make crds`; do not edit."


def setting_names(loss: str) -> frozenset[str]:
    """Names of all settings of an algorithm; those of groups of settings too, and all of the engine."""
    own = frozenset(_walk(OmegaConf.to_container(defaults(loss), resolve=False), ""))
    return own | {f"{engine_settings.GROUP}.{name}" for name in engine_settings.SETTINGS}


def _walk(node: Any, prefix: str) -> Iterator[str]:
    for key, inner in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from _walk(inner, f"{prefix}{key}.")


def render() -> str:
    """Text of the operator's file; the module next to it says what its parts mean."""
    by_loss = {loss: setting_names(loss) for loss in ALGORITHMS}
    common = frozenset.intersection(*by_loss.values())
    parts: dict[str, Any] = {
        "source": SOURCE,
        "common": _by_group(common),
        "by_loss": {loss: _by_group(names - common) for loss, names in by_loss.items()},
        "open": _by_group(_open_groups()),
        "registered": {DEFAULT_LOOP: [AGENT_LOOP]},
        "required": _required(),
        **_values(by_loss),
        **_reference(),
    }
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(part)}" for name, part in parts.items()) + "\n}\n"


def _by_group(names: Iterable[str]) -> dict[str, str]:
    """The last parts of names, by the group that they are in."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        group, _, last = name.rpartition(".")
        groups.setdefault(group, []).append(last)
    return {group: " ".join(lasts) for group, lasts in sorted(groups.items())}


def _lines(part: Any) -> str:
    """A part of the file as JSON, with a line for each of its entries."""
    if isinstance(part, dict):
        entries = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in part.items())
        return f"{{\n{entries}\n}}"
    if isinstance(part, list):
        return "[\n" + ",\n".join(f" {json.dumps(row)}" for row in part) + "\n]"
    return json.dumps(part)


def _open_groups() -> Iterator[str]:
    """`OPEN`, with the groups among the engine's settings instead of those settings, whose names are known."""
    yield from (name for name in OPEN if name != engine_settings.GROUP)
    for name, setting in engine_settings.SETTINGS.items():
        if setting.kind is dict:
            yield f"{engine_settings.GROUP}.{name}"


def _required() -> list[Any]:
    """The settings that must have one value with some algorithms: name, value, reason and the algorithms."""
    losses: dict[str, list[str]] = {}
    for loss, entry in ALGORITHMS.items():
        for each in entry.required:
            if each.name not in (LOG_PROBS, KL):  # the trainer drops the other value, and says why (unused_values.py)
                losses.setdefault(json.dumps([each.name, each.value, each.reason]), []).append(loss)
    return [[*json.loads(row), names] for row, names in losses.items()]


def _values(by_loss: Mapping[str, frozenset[str]]) -> dict[str, Any]:
    """Types and ranges of values, and what is a group."""
    found: dict[str, set[type | None]] = {}
    groups: dict[str, bool] = {}
    for loss, names in by_loss.items():
        config = defaults(loss)
        known = value_types.kinds(config, sorted(names - SUPPORTED.keys())) | _engine_kinds()
        for name in {*names, *known}:
            found.setdefault(name, set()).add(known.get(name))
        groups |= setting_groups.groups(config)
    # Where an algorithm takes values of another type, only the trainer checks them.
    kinds = {name: kind for name, (kind, *others) in found.items() if kind and not others}
    return {
        "numbers": _by_group(name for name, kind in kinds.items() if kind is float),
        "switches": _by_group(name for name, kind in kinds.items() if kind is bool),
        "pairs": value_types.PAIRS,
        "never_null": _by_group(name for name in kinds if not value_types.may_be_null(name)),
        "groups": _by_group(groups),
        "empty_groups": _by_group(group for group, empty in groups.items() if empty),
        "positive": {name: number_ranges.ADVICE.get(name, "") for name in sorted(number_ranges.POSITIVE)},
        "not_negative": {name: number_ranges.ADVICE.get(name, "") for name in sorted(number_ranges.NOT_NEGATIVE)},
    }


def _engine_kinds() -> dict[str, type]:
    """Types of the engine's settings that are numbers or switches."""
    kinds: dict[type, type] = {bool: bool, int: float, float: float}
    found = ((name, kinds.get(setting.kind)) for name, setting in engine_settings.SETTINGS.items())
    return {f"{engine_settings.GROUP}.{name}": kind for name, kind in found if kind is not None}


def _reference() -> dict[str, Any]:
    """The settings of the reference that the configuration does not have, and those with few accepted values."""
    by_name = sorted(rules().items())
    rejected: dict[str, list[str]] = {}
    for name, rule in by_name:
        if isinstance(rule, Rejected):
            rejected.setdefault(json.dumps([rule.accepted, rule.advice]), []).append(name)
    for name, supported in sorted(SUPPORTED.items()):
        rejected.setdefault(json.dumps([supported.values, supported.advice]), []).append(name)
    for name, setting in engine_settings.SETTINGS.items():
        if setting.choices:
            row = json.dumps([[None, *setting.choices], setting.meaning])
            rejected.setdefault(row, []).append(f"{engine_settings.GROUP}.{name}")
    return {
        "elsewhere": {name: rule.name for name, rule in by_name if isinstance(rule, Renamed | Copied)},
        "without_effect": _by_group(name for name, rule in by_name if isinstance(rule, WithoutEffect)),
        "rejected": [[*json.loads(row), _by_group(names)] for row, names in rejected.items()],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file. Returns the exit code."""
    return write_or_check(
        arguments, FILE, lambda _: render(), stale="does not list the settings of verl_omni/trainer/config"
    )


if __name__ == "__main__":
    sys.exit(main())
