"""PURE: names, labels and annotations of everything that belongs to a job; they depend on the job alone."""

from __future__ import annotations

from dataclasses import dataclass

from .job import API_VERSION

GROUP = API_VERSION.partition("/")[0]
MANAGER = "omni-operator"
JOB_LABEL = f"{GROUP}/job"
ATTEMPT_LABEL = f"{GROUP}/attempt"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
RENDERED_ANNOTATION = f"{GROUP}/rendered"  # digest of what was rendered
FINALIZER = f"{GROUP}/finalizer"
FIELD_MANAGER = "diffusionrl-operator"
SELECTOR = f"{MANAGED_BY_LABEL}={MANAGER}"  # of all children
TRAINER_GROUP = "trainer"  # name of the worker group


@dataclass(frozen=True, slots=True)
class Names:
    """Names of what a job consists of; `job` is the job's own."""

    job: str

    def attempt(self, number: int) -> str:
        """The RayJob of an attempt; at most 47 characters, KubeRay's limit."""
        return f"{self.job}-a{number:02d}"

    def config(self, number: int) -> str:
        """The ConfigMap of an attempt."""
        return f"{self.attempt(number)}-config"

    @property
    def head_service(self) -> str:
        """The Service that finds the head of whichever attempt runs."""
        return f"{self.job}-head"

    def labels(self) -> dict[str, str]:
        """Of everything that belongs to the job."""
        return {MANAGED_BY_LABEL: MANAGER, JOB_LABEL: self.job}

    def attempt_labels(self, number: int) -> dict[str, str]:
        """Of everything that belongs to an attempt."""
        return {**self.labels(), ATTEMPT_LABEL: str(number)}


def attempt_of(labels: dict[str, str]) -> int | None:
    """The attempt that an object's labels name; None where they name none."""
    text = labels.get(ATTEMPT_LABEL, "")
    return int(text) if text.isdigit() and text.isascii() else None


# Where the operator takes reports, below its address.
REPORTS_PATH = "/v1/reports"


def report_audience(namespace: str, job: str) -> str:
    """Audience of the token that a job's reports carry."""
    return f"{API_VERSION}/namespaces/{namespace}/diffusionrljobs/{job}/report"
