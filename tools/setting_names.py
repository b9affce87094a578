"""Names of the trainer's settings, as a module of the operator, which checks overrides without the trainer.

    python -m tools.setting_names [--check]

`--check` writes nothing and fails where the file does not match the trainer's configuration.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tools.generated_file import write_or_check
from verl_omni.pipelines.registry import FAMILIES
from verl_omni.trainer.settings import number_ranges, setting_groups, value_types
from verl_omni.trainer.settings.configuration import OPEN, defaults
from verl_omni.trainer.settings.registered_names import ARCHITECTURE, DEFAULT_LOOP, MISSING_FAMILY
from verl_omni.trainer.settings.supported_values import SUPPORTED
from verl_omni.trainer.settings.unused_values import KL, LOG_PROBS
from verl_omni.utils import engine_settings
from verl_omni.utils.reference_settings import Copied, Rejected, Renamed, WithoutEffect, rules
from verl_omni.verl_names import AGENT_LOOP
from verl_omni.workers.algorithms.registered import ALGORITHMS

FILE = Path("operator/omni_operator/api/overrides/setting_names.py")
WIDTH = 120
HEADER = '''\
"""Names of the trainer's settings. Written from verl_omni/trainer/config by `make crds`; do not edit."""

# fmt: off
# ruff: noqa: E501
from __future__ import annotations

'''


def setting_names(loss: str) -> frozenset[str]:
    """Names of all settings of an algorithm; those of groups of settings too, and all of the engine."""
    own = frozenset(_walk(OmegaConf.to_container(defaults(loss), resolve=False), ""))
    return own | {f"{engine_settings.GROUP}.{name}" for name in engine_settings.SETTINGS}


def _walk(node: Any, prefix: str) -> Iterator[str]:
    for key, inner in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from _walk(inner, f"{prefix}{key}.")


def render() -> str:
    """Text of the operator's module."""
    by_loss = {loss: setting_names(loss) for loss in ALGORITHMS}
    common = frozenset.intersection(*by_loss.values())
    parts = [
        "# Settings of every algorithm.\n",
        _tuple("COMMON", common),
        "# Settings of one algorithm, by the trainer's name of it.\n",
        "BY_LOSS = {\n",
        *(f'    "{loss}": (\n{_lines(names - common, 8)}    ),\n' for loss, names in by_loss.items()),
        "}\n",
        "# Groups whose keys the user chooses.\n",
        _tuple("OPEN", _open_groups()),
        "# What this project registers, by the setting that names one of them.\n",
        f'REGISTERED = {{\n    "{ARCHITECTURE}": {tuple(sorted(FAMILIES))!r},\n',
        f'    "{DEFAULT_LOOP}": {(AGENT_LOOP,)!r},\n}}\n',
        "# Paths of models of the reference's families that do not exist here, in any case.\n",
        f"MISSING_FAMILY = {MISSING_FAMILY!r}\n",
        *_required(),
        *_values(by_loss),
        *_reference(),
    ]
    return HEADER + "".join(parts)


def _open_groups() -> Iterator[str]:
    """`OPEN`, with the groups among the engine's settings instead of those settings, whose names are known."""
    yield from (name for name in OPEN if name != engine_settings.GROUP)
    for name, setting in engine_settings.SETTINGS.items():
        if setting.kind is dict:
            yield f"{engine_settings.GROUP}.{name}"


def _required() -> Iterator[str]:
    """The settings that must have one value with an algorithm."""
    losses: dict[str, list[str]] = {}
    for loss, entry in ALGORITHMS.items():
        for each in entry.required:
            if each.name not in (LOG_PROBS, KL):  # the trainer drops the other value, and says why (unused_values.py)
                row = f"{json.dumps(each.name)}, {each.value!r}, {json.dumps(each.reason)}"
                losses.setdefault(row, []).append(loss)
    yield "# Settings that must have one value with some algorithms, and why.\n"
    yield "REQUIRED: tuple[tuple[str, object, str, tuple[str, ...]], ...] = (\n"
    yield from (f"    ({row}, {tuple(names)!r}),\n" for row, names in losses.items())
    yield ")\n"


def _values(by_loss: Mapping[str, frozenset[str]]) -> Iterator[str]:
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
    for title, name, kind in (("numbers", "NUMBERS", float), ("true or false", "SWITCHES", bool)):
        yield f"# Settings that are {title}.\n"
        yield _tuple(name, (setting for setting, found in kinds.items() if found is kind))
    yield "# Settings that are two numbers, with an example.\n"
    yield f"PAIRS = {{\n{_entries(value_types.PAIRS)}}}\n"
    yield "# Numbers and switches that are never null.\n"
    yield _tuple("NEVER_NULL", (setting for setting in kinds if not value_types.may_be_null(setting)))
    yield "# Groups of settings, and those that are empty by default, so that null means empty.\n"
    yield _tuple("GROUPS", groups)
    yield _tuple("EMPTY_GROUPS", (group for group, empty in groups.items() if empty))
    yield "# Numbers that must be positive, or must not be negative, with what to write instead.\n"
    for name, settings in (("POSITIVE", number_ranges.POSITIVE), ("NOT_NEGATIVE", number_ranges.NOT_NEGATIVE)):
        yield f"{name} = {{\n{_entries({one: number_ranges.ADVICE.get(one, '') for one in settings})}}}\n"


def _engine_kinds() -> dict[str, type]:
    """Types of the engine's settings that are numbers or switches."""
    kinds: dict[type, type] = {bool: bool, int: float, float: float}
    found = ((name, kinds.get(setting.kind)) for name, setting in engine_settings.SETTINGS.items())
    return {f"{engine_settings.GROUP}.{name}": kind for name, kind in found if kind is not None}


def _entries(values: Mapping[str, str]) -> str:
    return "".join(f"    {json.dumps(name)}: {json.dumps(text)},\n" for name, text in sorted(values.items()))


def _reference() -> Iterator[str]:
    """The settings of the reference that the configuration does not have."""
    by_name = sorted(rules().items())
    elsewhere = {name: rule.name for name, rule in by_name if isinstance(rule, Renamed | Copied)}
    rejected: dict[str, list[str]] = {}
    for name, rule in by_name:
        if isinstance(rule, Rejected):
            rejected.setdefault(f"{rule.accepted!r}, {json.dumps(rule.advice)}", []).append(name)
    for name, supported in sorted(SUPPORTED.items()):
        rejected.setdefault(f"{supported.values!r}, {json.dumps(supported.advice)}", []).append(name)
    for name, setting in engine_settings.SETTINGS.items():
        if setting.choices:
            row = f"{(None, *setting.choices)!r}, {json.dumps(setting.meaning)}"
            rejected.setdefault(row, []).append(f"{engine_settings.GROUP}.{name}")
    yield "# Settings of the reference, by the setting here that has their value. In a name, `.*` stands for a group.\n"
    yield "ELSEWHERE = {\n"
    yield from (f"    {json.dumps(name)}: {json.dumps(target)},\n" for name, target in elsewhere.items())
    yield "}\n"
    yield "# Settings of the reference that have no effect here.\n"
    yield _tuple("WITHOUT_EFFECT", (name for name, rule in by_name if isinstance(rule, WithoutEffect)))
    yield "# Settings with the only values that are accepted, and what to write instead of others.\n"
    yield "REJECTED: tuple[tuple[tuple[object, ...], str, tuple[str, ...]], ...] = (\n"
    for rule_text, names in rejected.items():
        short = f'    ({rule_text}, ("{names[0]}",)),\n'
        fits = len(names) == 1 and len(short) <= WIDTH
        yield short if fits else f"    ({rule_text}, (\n{_lines(names, 8)}    )),\n"
    yield ")\n"


def _tuple(name: str, values: Iterable[str]) -> str:
    return f"{name} = (\n{_lines(values, 4)})\n"


def _lines(values: Iterable[str], indent: int) -> str:
    margin = " " * indent
    text = " ".join(f'"{value}",' for value in sorted(values))
    return textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file. Returns the exit code."""
    return write_or_check(
        arguments, FILE, lambda _: render(), stale="does not list the settings of verl_omni/trainer/config"
    )


if __name__ == "__main__":
    sys.exit(main())
