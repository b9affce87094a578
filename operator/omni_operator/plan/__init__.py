"""PURE: the trainer's overrides and the Kubernetes objects of a job.

A name is imported when it is used: `drl validate` and `drl run` need no module about objects.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster_settings import *  # noqa: F403
    from .entrypoint import *  # noqa: F403
    from .objects import *  # noqa: F403
    from .overrides import *  # noqa: F403
    from .pods.disruptions import *  # noqa: F403
    from .pods.workers import *  # noqa: F403
    from .recipe_lint import *  # noqa: F403
    from .refusals import *  # noqa: F403
    from .run_layout import *  # noqa: F403
    from .yaml_writer import *  # noqa: F403

_NAMES = {
    "cluster_settings": "ClusterSettings",
    "entrypoint": "render_entrypoint render_pod_overrides resolve_for_pods",
    "objects": "digest_attempt digest_spec render_attempt render_job_objects render_objects",
    "overrides": "render_command render_overrides render_settings",
    "pods.disruptions": "render_budget",
    "pods.workers": "render_group",
    "recipe_lint": "find_risks find_unused",
    "refusals": "describe_refusals find_refusals find_warnings",
    "run_layout": "RunLayout local_layout map_paths pod_layout resolve_paths",
    "yaml_writer": "dump_yaml",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
