"""PURE: the trainer's overrides and the Kubernetes objects of a job."""

from .cluster_settings import ClusterSettings
from .entrypoint import render_entrypoint, render_pod_overrides, resolve_for_pods
from .objects import digest_attempt, digest_spec, render_attempt, render_job_objects, render_objects
from .overrides import render_command, render_overrides, render_settings
from .pods.disruptions import render_budget
from .pods.workers import render_group
from .refusals import describe_refusals, find_refusals, find_warnings
from .run_layout import RunLayout, local_layout, map_paths, pod_layout, resolve_paths
from .yaml_writer import dump_yaml

__all__ = [
    "ClusterSettings",
    "RunLayout",
    "describe_refusals",
    "render_attempt",
    "render_budget",
    "render_command",
    "digest_attempt",
    "digest_spec",
    "dump_yaml",
    "render_entrypoint",
    "resolve_for_pods",
    "render_job_objects",
    "render_objects",
    "local_layout",
    "map_paths",
    "pod_layout",
    "render_overrides",
    "render_pod_overrides",
    "render_group",
    "find_refusals",
    "find_warnings",
    "resolve_paths",
    "render_settings",
]
