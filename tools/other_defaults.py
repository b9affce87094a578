"""The table of docs/from-verl-omni/switching.md: settings that have another default than in the reference.

The reason of each is in config/other_defaults.yaml.

    python -m tools.other_defaults [--check]

`--check` writes nothing and fails where the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from tools import settings_page
from tools.generated_file import write_or_check
from verl_omni.utils.reference_settings import Renamed, find_rule

PAGE = Path("docs/from-verl-omni/switching.md")
BEGIN = "<!-- other defaults: written by `make crds` -->"
END = "<!-- end of other defaults -->"
# Evaluations have the settings of training samples, unless the first group has others.
EVALUATIONS = "actor_rollout_ref.rollout.val_kwargs.pipeline."
SAMPLES = "actor_rollout_ref.rollout.pipeline."
# What a list of the reference's settings has where it has no value, or one that it derives from other settings.
NO_VALUE = ("", "-", "None", "???")
DERIVED = "${"


@dataclass(frozen=True, slots=True)
class OtherDefault:
    """A setting with another default here.

    Attributes:
        there: the reference's, as text. here: those of this trainer; several if they depend on the algorithm.
    """

    name: str
    there: str
    here: tuple[str, ...]


def find() -> list[OtherDefault]:
    """All settings whose defaults differ. Those that the reference derives from other settings are not compared."""
    configs = settings_page.configurations()
    found = []
    for line in settings_page.reference_settings():
        name = line["setting"]
        there = line["default"]
        texts = [text for config in configs if (text := _here(config, name, there)) is not None]
        here = tuple(dict.fromkeys(text.strip("`") for text in texts))
        if not there.startswith(DERIVED) and any(_value(text) != _value(there) for text in here):
            found.append(OtherDefault(name, there, here))
    return found


def _here(config: DictConfig, name: str, there: str) -> str | None:
    """The default here, as code; None if the setting does not exist, or has none in both."""
    rule = find_rule(name)
    own = rule.name if isinstance(rule, Renamed) else name
    text = settings_page.default_here(config, own)
    if text is None and rule is None and own.startswith(EVALUATIONS) and there not in NO_VALUE:
        return f"${{{own.replace(EVALUATIONS, SAMPLES)}}}"  # the group has no defaults of its own
    return text


def reasons() -> dict[str, str]:
    """The reason of each other default, by the setting's name.

    Raises:
        ValueError: a setting has two.
    """
    source = files("verl_omni.trainer.config").joinpath("other_defaults.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for entry in yaml.safe_load(source):
        for name in entry["settings"]:
            if name in found:
                raise ValueError(f"{name} is twice in other_defaults.yaml")
            found[name] = entry["reason"]
    return found


def render(defaults: Sequence[OtherDefault], why: Mapping[str, str]) -> str:
    """The table.

    Raises:
        LookupError: a default without a reason, or a reason without a default that differs.
    """
    names = {each.name for each in defaults}
    if missing := [each.name for each in defaults if each.name not in why]:
        raise LookupError(f"other_defaults.yaml has no reason for the default of {', '.join(missing)}")
    if stale := [name for name in why if name not in names]:
        raise LookupError(f"other_defaults.yaml has a reason for {', '.join(stale)}, of which the default is the same")
    header = ["| setting | there | here |", "| --- | --- | --- |"]
    return "\n".join([*header, *map(_row, defaults)])


def _row(each: OtherDefault) -> str:
    here = " or ".join(f"`{text}`" for text in each.here)
    return f"| `{each.name}` | {_there(each.there)} | {here} |"


def _there(text: str) -> str:
    return "none" if text in NO_VALUE else f"`{text}`"


def _value(text: str) -> Any:
    """The value of a text in YAML or Python. YAML reads `1e-05` as text."""
    if text in NO_VALUE:
        return None
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _page(path: Path) -> str:
    """The page with a new table; the rest stays."""
    head, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n\n{render(find(), reasons())}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the table. Returns the exit code."""
    return write_or_check(arguments, PAGE, _page, stale="does not show the defaults of the trainer")


if __name__ == "__main__":
    sys.exit(main())
