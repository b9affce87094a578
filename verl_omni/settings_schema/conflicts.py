"""PURE: settings that do not go together whichever algorithm there is, and settings by name as a configuration."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from verl_omni.settings_schema.layout import algorithm_defaults, defaults, flat_settings, resolved_default

OPTIM = "actor_rollout_ref.actor.optim"
EPOCHS = "trainer.total_epochs"
FILTER = "data.filter_overlong_prompts"


class Section(dict[str, Any]):
    """A group of settings whose settings are attributes too, as in the trainer's configuration."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def configuration_of(loss: str, given: Mapping[str, Any]) -> Section:
    """The settings of an algorithm of this package: values that are given by name, and defaults.

    Args:
        given: values as in YAML; a mapping has some settings of its group.
    """
    flat = dict(_defaults(loss))
    for name, value in given.items():
        is_group = isinstance(value, dict) and isinstance(flat.get(name), dict | None)
        flat |= dict(flat_settings(value, f"{name}.")) if is_group else {name: value}
    config = Section()
    for name, value in flat.items():
        *groups, last = name.split(".")
        at = config
        for group in groups:
            if at.get(group) is None:  # a group whose default is null
                at[group] = Section()
            at = at[group]
        if not isinstance(value, dict):
            at[last] = resolved_default(flat, name)
        else:
            at.setdefault(last, Section())
    return config


@cache
def _defaults(loss: str) -> Mapping[str, Any]:
    return dict(flat_settings(defaults(algorithm_defaults(loss))))


def find_conflicts(config: Any) -> Iterator[str]:
    """Messages about settings that do not go together.

    Args:
        config: the trainer's configuration, or a `Section`.
    """
    optim = config.actor_rollout_ref.actor.optim
    if optim.lr_warmup_steps > 0 and optim.lr_warmup_steps_ratio > 0:
        yield f"{OPTIM}.lr_warmup_steps_ratio: is not read with lr_warmup_steps={optim.lr_warmup_steps}; write one"
    if config.trainer.total_epochs is not None and config.data.filter_overlong_prompts:
        yield (
            f"{EPOCHS}: with {FILTER}=true the number of prompts is known only after the start; write {EPOCHS}=null, "
            "and the number of steps"
        )
