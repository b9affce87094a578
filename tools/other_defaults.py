"""Settings that have another default than in the reference; config/other_defaults.yaml has the reason of each.

`check` fails where one has no reason. docs/reference/settings.md has both defaults of every setting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml
from omegaconf import DictConfig

from tools import settings_page
from verl_omni.settings_schema.reference_settings import Renamed, find_rule

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
        there: the reference's, as text. here: this trainer's; several if they depend on the algorithm.
    """

    name: str
    there: str
    here: tuple[str, ...]


def find() -> list[OtherDefault]:
    """All settings whose defaults differ. Those that the reference derives from other settings are not compared."""
    configs = settings_page.configurations()
    differing = []
    for line in settings_page.reference_settings():
        name = line["setting"]
        there = line["default"]
        texts = [text for config in configs if (text := _here(config, name, there)) is not None]
        here = tuple(dict.fromkeys(text.strip("`") for text in texts))
        if not there.startswith(DERIVED) and any(_value(text) != _value(there) for text in here):
            differing.append(OtherDefault(name, there, here))
    return differing


def _here(config: DictConfig, name: str, there: str) -> str | None:
    """The default here, as code; None if the setting does not exist, or has none in both."""
    rule = find_rule(name)
    name_here = rule.name if isinstance(rule, Renamed) else name
    text = settings_page.default_here(config, name_here)
    if text is None and rule is None and name_here.startswith(EVALUATIONS) and there not in NO_VALUE:
        return f"${{{name_here.replace(EVALUATIONS, SAMPLES)}}}"  # the group itself has no defaults
    return text


def reasons() -> dict[str, str]:
    """The reason of each other default, by the setting's name.

    Raises:
        ValueError: a setting has two.
    """
    source = files("verl_omni.trainer.config").joinpath("other_defaults.yaml").read_text(encoding="utf-8")
    by_name: dict[str, str] = {}
    for entry in yaml.safe_load(source):
        for name in entry["settings"]:
            if name in by_name:
                raise ValueError(f"{name} is twice in other_defaults.yaml")
            by_name[name] = entry["reason"]
    return by_name


def check(defaults: Sequence[OtherDefault], why: Mapping[str, str]) -> None:
    """Compare the defaults with the reasons.

    Raises:
        LookupError: a default without a reason, or a reason without a default that differs.
    """
    names = {default.name for default in defaults}
    if missing := [default.name for default in defaults if default.name not in why]:
        raise LookupError(f"other_defaults.yaml has no reason for the default of {', '.join(missing)}")
    if stale := [name for name in why if name not in names]:
        raise LookupError(f"other_defaults.yaml has a reason for {', '.join(stale)}, of which the default is the same")


def _value(text: str) -> Any:
    """The value of a text in YAML or Python. YAML reads `1e-05` as text."""
    if text in NO_VALUE:
        return None
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
