"""Default settings of an algorithm that a user's module registered (`verl_omni.extensions`), and its import."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.settings_schema.layout import algorithm_defaults
from verl_omni.utils.registry import import_modules, load
from verl_omni.workers.algorithms.description import LOSS, RegisteredAlgorithm
from verl_omni.workers.algorithms.registered import ALGORITHMS

EXTERNAL_LIB = "actor_rollout_ref.model.external_lib"


class ExtensionFailed(ValueError):
    """A module of the user's raised an error when it was imported, which is the cause of this one."""


def import_extensions(named: Any) -> None:
    """Import the modules of `external_lib`.

    Raises:
        ValueError: one is not found, or `named` is neither a name nor a list of names.
        ExtensionFailed: one raised an error, or ended the program.
    """
    modules = [] if named is None else list(named) if isinstance(named, (list, tuple)) else [named]
    for module in modules:
        if not (isinstance(module, str) and module):
            raise ValueError(f"{EXTERNAL_LIB}: must be the name of a module, or a list of names, not {named!r}")
        try:
            import_modules(module)
        except (Exception, SystemExit) as error:
            name = error.name if isinstance(error, ModuleNotFoundError) else None
            if name is not None and (module == name or module.startswith(f"{name}.")):
                raise ValueError(
                    f"{EXTERNAL_LIB}: no module {module!r}; write the name of a Python module that is installed, or in "
                    "a folder of PYTHONPATH"
                ) from error
            description = f"{type(error).__name__}: {error}"
            raise ExtensionFailed(f"{EXTERNAL_LIB}: the import of {module} failed: {description}") from error


def find_problems(config: DictConfig) -> Iterator[str]:
    """Messages about what a user's algorithm, or the type of its settings, raises when a worker makes it."""
    settings: Any = OmegaConf.to_container(config.actor_rollout_ref.actor.diffusion_loss, resolve=True)
    entry = ALGORITHMS[settings["loss_mode"]]
    if entry.like is None or entry.loss is not None:
        return
    algorithm = load(entry.implementation)
    given = {name: value for name, value in settings.items() if name != "_target_"}
    for kind, arguments in ((algorithm.settings, given), (algorithm, {})):
        try:
            kind(**arguments)
        except Exception as error:  # noqa: BLE001  whatever the user's class does
            yield f"{LOSS}: {kind.__name__} of {entry.implementation} failed: {type(error).__name__}: {error}"


def default_settings(name: str, entry: RegisteredAlgorithm) -> dict[str, Any]:
    """The settings file of the algorithm given as `like`, with the fields of its settings type as `diffusion_loss`."""
    if entry.like is None:
        raise ValueError(f"{name} is an algorithm of this package")
    settings = algorithm_defaults(entry.like)
    group = settings["actor_rollout_ref"]
    if entry.loss is None:
        kind = load(entry.implementation).settings
        loss_settings = {key: value for key, value in asdict(kind(loss_mode=name)).items() if not key.startswith("_")}
        group["actor"]["diffusion_loss"] = {"_target_": f"{kind.__module__}.{kind.__qualname__}", **loss_settings}
    group["actor"]["diffusion_loss"]["loss_mode"] = group["model"]["algorithm"] = name
    return settings
