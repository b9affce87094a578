"""Settings of a run that differ from the defaults of its algorithm."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from verl_omni.trainer.report.description import LOSS_MODE, get, text

ABSENT = "–"
# Settings that name a run and say nothing about it.
NAMES = ("trainer.default_local_dir", "trainer.experiment_name")


def changed_settings(settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Name -> default and value; empty if the algorithm is not known here, as one of a user's extension."""
    from verl_omni.trainer.settings import configuration
    from verl_omni.workers.algorithms.registered import ALGORITHMS

    loss = get(settings, LOSS_MODE)
    if loss not in ALGORITHMS:
        return {}
    composed = OmegaConf.to_container(configuration.defaults(loss), resolve=True)
    assert isinstance(composed, dict)
    before = dict(flatten(composed))
    changed = {}
    for name, value in sorted(flatten(settings)):
        shown = (shown_value(before, name), text(value) or "null")
        if shown[0] != shown[1] and name not in NAMES:
            changed[name] = shown
    return changed


def flatten(settings: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each setting."""
    for name, value in settings.items():
        path = f"{at}.{name}" if at else str(name)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, path)
        else:
            yield path, value


def shown_value(settings: Mapping[str, Any], name: str) -> str:
    """A setting of `flatten` as text; `ABSENT` if there is none."""
    return text(settings[name]) or "null" if name in settings else ABSENT
