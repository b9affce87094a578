"""Pure: a job to the trainer's overrides and the objects it needs."""

from .cluster_settings import ClusterSettings
from .entrypoint import entrypoint, in_pods, overrides_in_pods
from .objects import attempt_objects, dumped, job_objects, objects
from .overrides import command, overrides, settings
from .place import Place, one_machine, rooted
from .refusals import refusals

__all__ = [
    "ClusterSettings",
    "Place",
    "attempt_objects",
    "command",
    "dumped",
    "entrypoint",
    "in_pods",
    "job_objects",
    "objects",
    "one_machine",
    "overrides",
    "overrides_in_pods",
    "refusals",
    "rooted",
    "settings",
]
