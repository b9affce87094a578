"""docs/reference/settings.md: every setting of the reference, and what becomes of it here."""

import csv
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.declarations import OPEN_GROUPS, SETTINGS
from verl_omni.settings_schema.reference_settings import Copied, Rejected, Renamed, WithoutEffect, find_rule, rules
from verl_omni.trainer.settings import cpu_values
from verl_omni.trainer.settings.configuration import defaults
from verl_omni.workers.algorithms.registered import ALGORITHMS

PAGE = Path("docs/reference/settings.md")
SOURCE = Path("docs/figures/reference-settings.tsv")
HEADER = """\
# Settings of the reference

For users of verl-omni: all {total} settings of its trainer, and what becomes of each here. Written by `make crds`
from the trainer's configuration and `verl_omni/settings_schema/reference_settings.yaml`; tests compare every line with
what the trainer does. Names and defaults of the reference are from verl-omni of September 2026.

| what happens to a value | settings |
| --- | ---: |
{counts}

One default: both have it. `x` there, `y` here: the reference's, and this trainer's.

- **used**: it has the reference's meaning, except for what [switching.md](../from-verl-omni/switching.md) says. With
  "only", other values are refused. "With" names the only algorithms (`loss_mode`) that read it; with others it has no
  effect, and is named at the start.
- **same as**: the value goes to the named setting, or must be equal to it.
- **without effect**: accepted and named once at the start of a run, with this reason.
- **only**: other values are refused, because this trainer does not have what they ask for.
- **refused**: no value is accepted.

On a machine without an accelerator, these settings of `actor_rollout_ref` have no effect either, and are named as well:
{on_cpu}.
"""
ENGINE_TITLE = "Settings of the engine"
ENGINE_HEADER = f"""
## {ENGINE_TITLE}

Below `{engine_settings.GROUP}` a run, and each program that starts a
[rollout server](../guides/pools.md#the-rollout-server), may set these, with hyphens too. The engine is handed what is
set, by name; null is not set. Names that are not here are refused, `drl validate` suggests the nearest one, and values
that other settings rule out are refused at the start. What does nothing for a model's family or next to other settings
is named.

"""
REFUSED_HEADER = """
These are settings of vLLM-Omni that the stage of this trainer cannot take, unless their value asks for nothing:

"""
_WRITTEN = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "group, or JSON text"}
DESCRIBED = re.compile(r"(?P<used>used|with .*?); default (?P<default>.*?)(?P<only>; only .*)?$")
USED = ("used", "same as another")
KINDS = ("used", "same as another", "without effect", "only the value that asks for nothing", "refused")


@dataclass(frozen=True, slots=True)
class Row:
    """A setting of the reference.

    Attributes:
        recipes: published recipes that set it. default: the reference's.
        kind: one of `KINDS`. here: what becomes of it.
    """

    name: str
    recipes: str
    default: str
    kind: str
    here: str


def reference_settings(source: Path = SOURCE) -> list[dict[str, str]]:
    """Rows of the list of the reference's settings: setting, recipes, default."""
    with source.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def configurations() -> list[DictConfig]:
    """The default settings with each algorithm of the reference; interpolations are not resolved."""
    return [defaults(loss) for loss, entry in ALGORITHMS.items() if entry.in_reference]


def describe(name: str, configs: Sequence[DictConfig]) -> tuple[str, str] | None:
    """(kind, what becomes of the setting); None if the trainer does not know it."""
    if defaults := [(config, text) for config in configs if (text := default_here(config, name)) is not None]:
        text = f"{_used(defaults, len(configs))}; default {' or '.join(dict.fromkeys(text for _, text in defaults))}"
        if name in SETTINGS and SETTINGS[name].values:
            text += f"; only {_listed(SETTINGS[name].values)}: {SETTINGS[name].advice}"
        return KINDS[0], text
    match find_rule(name):
        case Renamed(name=target) | Copied(name=target):
            return KINDS[1], f"same as `{target}`"
        case WithoutEffect(reason=reason):
            return KINDS[2], f"without effect: {reason}"
        case Rejected(accepted=accepted, advice=advice):
            return KINDS[3], f"only {_listed(accepted)}: {advice}"
        case None:
            pass
    if name.removeprefix(f"{engine_settings.GROUP}.") in engine_settings.SETTINGS:
        return KINDS[0], f"used: [{ENGINE_TITLE}](#{ENGINE_TITLE.lower().replace(' ', '-')})"
    if any(name.startswith(f"{group}.") for group in OPEN_GROUPS):
        return KINDS[0], "used; one of a group whose names the user chooses"
    return None


def _used(found: Sequence[tuple[DictConfig, str]], algorithms: int) -> str:
    """Which algorithms use a setting."""
    if len(found) == algorithms:
        return "used"
    names = [_code(config.actor_rollout_ref.actor.diffusion_loss.loss_mode) for config, _ in found]
    return f"with {', '.join(names)}"


def default_here(config: DictConfig, name: str) -> str | None:
    """Default of a setting, as code; None if the configuration does not have it."""
    parent, _, key = name.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False)
    if not isinstance(node, DictConfig) or node._is_none() or key not in node._content:
        return None
    inner = node._get_node(key)
    return _code(OmegaConf.to_container(inner) if OmegaConf.is_config(inner) else inner._value())  # type: ignore[union-attr]


def _there(default: str) -> str:
    return "" if not default else "derived" if default.startswith("${") else _code(default)


def _shown(row: Row) -> str:
    """The defaults of a setting, and what else is to know."""
    parts = DESCRIBED.match(row.here)
    if parts is None:
        return f"{row.here}; {_there(row.default) or 'none'} there"
    default = parts["default"] if _same(row.default, parts["default"]) else ""
    default = default or f"{_there(row.default) or 'none'} there, {parts['default']} here"
    algorithms = "" if parts["used"] == "used" else f"; {parts['used']}"
    return default + algorithms + (parts["only"] or "")


def _same(there: str, here: str) -> bool:
    """Whether a default is the same value in Python and in YAML; a derived one, and one with a condition, is not."""
    none = ("", "-", "None")
    return here.strip("`") == ("null" if there in none else there.lower() if there in ("True", "False") else there)


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(_code(value) for value in values)


def _code(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return "`" + text.replace("|", "\\|").replace("\n", " ") + "`"


def rows() -> list[Row]:
    """All settings of the reference.

    Raises:
        LookupError: the trainer neither has a setting nor a rule for it.
    """
    configs = configurations()
    described_rows = []
    for line in reference_settings():
        described = describe(line["setting"], configs)
        if described is None:
            raise LookupError(f"{line['setting']}: neither a setting nor in reference_settings.yaml")
        described_rows.append(Row(line["setting"], line["recipes"], line["default"], *described))
    return described_rows


def render() -> str:
    """Text of the page."""
    return "".join(_parts(rows()))


def _parts(found: Sequence[Row]) -> Iterator[str]:
    counts = Counter(row.kind for row in found)
    table = "\n".join(f"| {kind} | {counts[kind]} |" for kind in KINDS if counts[kind])
    names = (name.removeprefix("actor_rollout_ref.") for name in {**cpu_values.REPLACED, **cpu_values.IGNORED})
    on_cpu = textwrap.fill(", ".join(f"`{name}`" for name in names), 120)
    yield HEADER.format(total=len(found), counts=table, on_cpu=on_cpu)
    sections: dict[str, list[Row]] = {}
    for row in found:
        sections.setdefault(row.name.partition(".")[0], []).append(row)
    for section, its_rows in sections.items():
        yield f"\n## {section}\n"
        yield from _section(section, its_rows)
    yield from _engine()


def _section(section: str, found: Sequence[Row]) -> Iterator[str]:
    """The settings that have a meaning here, then the others by what becomes of them."""
    yield "\n"
    for row in found:
        if row.kind in USED:
            yield f"- `{row.name.removeprefix(f'{section}.')}`: {_shown(row)}\n"
    others: dict[str, dict[str, None]] = {}
    for row in found:
        if row.kind not in USED:
            others.setdefault(row.here, {})[f"`{_group(row, found).removeprefix(f'{section}.')}`"] = None
    for here, names in others.items():
        yield f"- {', '.join(names)}: {here}\n"


def _group(row: Row, found: Sequence[Row]) -> str:
    """The largest group of settings, as `group.*`, that all have the row's fate; the row's own name without one."""
    parts = row.name.split(".")
    for count in range(2, len(parts)):
        group = ".".join(parts[:count])
        fates = [compared.here for compared in found if compared.name.startswith(f"{group}.")]
        if len(fates) > 1 and set(fates) == {row.here}:
            return f"{group}.*"
    return row.name


def _engine() -> Iterator[str]:
    """The settings that the engine is handed, and those that it cannot take."""
    yield ENGINE_HEADER
    for name, setting in engine_settings.SETTINGS.items():
        meaning = setting.meaning + (f": {_listed(setting.choices)}" if setting.choices else "")
        yield f"- `{name}` ({_WRITTEN[setting.kind]}): {meaning}\n"
    reasons: dict[str, list[str]] = {}
    for name, rule in sorted(rules().items()):
        match rule:
            case Rejected(advice=reason) if name.startswith(f"{engine_settings.GROUP}."):
                reasons.setdefault(f"refused: {reason}", []).append(name)
            case WithoutEffect(reason=reason) if name.startswith(f"{engine_settings.GROUP}."):
                reasons.setdefault(f"without effect: {reason}", []).append(name)
            case _:
                pass
    yield REFUSED_HEADER
    for reason, names in reasons.items():
        yield f"- {', '.join(_code(name.rpartition('.')[2]) for name in names)}: {reason}\n"


def generated() -> dict[Path, str]:
    """The page."""
    return {PAGE: render()}
