"""PURE: settings and data of a resumed run that differ from its checkpoint's.

On a cluster, a job that is submitted again under its name continues in its run folder, also after an edit. That may be
what its author wants, such as a lower learning rate, or not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.settings_schema.layout import common_defaults, flat_settings, resolved_default
from verl_omni.settings_schema.resuming import may_differ

TYPE_OF_GROUP = "._target_"
OPTIM = "actor_rollout_ref.actor.optim"
SHOWN = 8  # differing settings that a message lists
Content = Mapping[str, Sequence[str | None]]


def describe_changes(before: DictConfig, now: DictConfig, content_before: Content, content_now: Content) -> str:
    """Differences: settings that may not differ, each with both values, and files and folders that they name.

    Empty if nothing differs. Files that have moved, with the same content, do not differ, nor do settings that are new
    in this version and have their defaults.

    Args:
        content_before, content_now: by setting a digest of each file or folder, None where it was not read.
    """
    earlier = _values(before)
    later = _values(now)
    names = {
        name
        for name in earlier.keys() | later.keys()
        if earlier.get(name) != later.get(name) and (name in earlier or later[name] != _default(name))
    }
    both = {name: (content_before[name], content_now[name]) for name in content_before.keys() & content_now.keys()}
    known = {name: was == now_is for name, (was, now_is) in both.items() if None not in (*was, *now_is)}
    replaced = sorted(name for name, same in known.items() if not same and name not in names)
    moved = {name for name, same in known.items() if same}
    changed = [
        *(f"the content of {name} is another" for name in replaced),
        *(f"{name} was {earlier.get(name)}, is {later.get(name)}" for name in sorted(names - moved)),
    ]
    others = [f"{len(changed) - SHOWN} others"] if len(changed) > SHOWN else []
    return "; ".join([*changed[:SHOWN], *others])


def _values(config: DictConfig) -> dict[str, Any]:
    values = {
        name: value
        for name, value in flat_settings(OmegaConf.to_container(config, resolve=True))
        if not (isinstance(value, dict) or may_differ(name) or name.endswith(TYPE_OF_GROUP))
    }
    if values.get(f"{OPTIM}.lr_scheduler_type") == "constant":
        values.pop(f"{OPTIM}.total_training_steps", None)  # a longer run, whose learning rate does not change
    return values


def _default(name: str) -> Any:
    return resolved_default(common_defaults(), name)
