"""Algorithms, one module each, which describes an algorithm and imports neither torch nor verl.

A module's name is a `loss_mode`, and its `ALGORITHM` says what implements it, which settings it needs, and its names in
a job. What its docstring says after the first paragraph goes to docs/reference/algorithms.md. Trainer, operator and
documents read these modules. Users add algorithms with `verl_omni.extensions`.
"""

import importlib
import pkgutil

from verl_omni.utils.registry import Registry, merged
from verl_omni.workers.algorithms.description import JobName, RegisteredAlgorithm


def _modules() -> dict[str, RegisteredAlgorithm]:
    """The descriptions of this package's algorithms."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").ALGORITHM for name in names}


ALGORITHMS = Registry("algorithm", _modules())


def job_names() -> dict[str, tuple[str, JobName]]:
    """The algorithm of this package, and what else a name means, by the names in a job."""
    own = {algorithm: entry.names for algorithm, entry in ALGORITHMS.items() if entry.like is None}
    named = {
        algorithm: {name: (algorithm, meaning) for name, meaning in names.items()} for algorithm, names in own.items()
    }
    return merged("name in a job", named)
