"""What users write and read: the v1alpha1 models."""

from .job import API_VERSION, KIND, DiffusionRLJob, Metadata, Spec
from .job_loader import JobError, LoadedJob, Problem, load_job, read_job

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
