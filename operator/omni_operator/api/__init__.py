"""What users write and read: the v1alpha1 models.

Reading a job from YAML takes ruamel.yaml, which the operator's process does not need: these names are imported when
they are used.
"""

from typing import TYPE_CHECKING, Any

from .job import API_VERSION, KIND, DiffusionRLJob, Spec
from .metadata import Metadata

if TYPE_CHECKING:
    from .files.job_loader import JobError, LoadedJob, Problem, load_job, read_job

__all__ = [
    "API_VERSION",
    "KIND",
    "DiffusionRLJob",
    "JobError",
    "LoadedJob",
    "Metadata",
    "Problem",
    "Spec",
    "load_job",
    "read_job",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .files import job_loader

    return getattr(job_loader, name)
