"""Default settings of an algorithm that a user's module registered (`verl_omni.extensions`), and its import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore

from verl_omni.utils.registry import import_modules, load
from verl_omni.workers.algorithms.registry import ALGORITHMS, RegisteredAlgorithm

EXTERNAL_LIB = "actor_rollout_ref.model.external_lib"


def import_extensions(named: str | Sequence[str] | None) -> None:
    """Import the modules of `external_lib`.

    Raises:
        ValueError: one is not found. Errors inside a module are not translated.
    """
    modules = [] if named is None else [named] if isinstance(named, str) else list(named)
    for module in modules:
        try:
            import_modules(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise
            raise ValueError(
                f"{EXTERNAL_LIB}: no module {module!r}; write the name of a Python module that is installed, or in a "
                "folder of PYTHONPATH"
            ) from error


def store_settings(name: str) -> None:
    """Make the settings of a user's algorithm known to Hydra as `loss=<name>`; those of this package are files."""
    entry = ALGORITHMS[name]
    if entry.like is not None:
        ConfigStore.instance().store(group="loss", name=name, node=default_settings(name, entry), package="_global_")


def default_settings(name: str, entry: RegisteredAlgorithm) -> dict[str, Any]:
    """The settings file of the algorithm that it is like, with the fields of its own type as `diffusion_loss`."""
    source = files("verl_omni.trainer.config").joinpath("loss", f"{entry.like}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(source)
    group = found["actor_rollout_ref"]
    if entry.loss is None:
        kind = load(entry.implementation).settings
        own = {key: value for key, value in asdict(kind(loss_mode=name)).items() if not key.startswith("_")}
        group["actor"]["diffusion_loss"] = {"_target_": f"{kind.__module__}.{kind.__qualname__}", **own}
    group["actor"]["diffusion_loss"]["loss_mode"] = group["model"]["algorithm"] = name
    return found
