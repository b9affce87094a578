"""PURE: names, labels and annotations of a job's objects, derived from the job alone."""

import re
import string
from dataclasses import dataclass

from .job import API_VERSION

GROUP = API_VERSION.partition("/")[0]
MANAGER = "omni-operator"
JOB_LABEL = f"{GROUP}/job"
ATTEMPT_LABEL = f"{GROUP}/attempt"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
RENDERED_ANNOTATION = f"{GROUP}/rendered"  # digest of the rendered object
SPEC_ANNOTATION = f"{GROUP}/spec"  # on a RayJob: hash of the spec fields that determine an attempt's pods
PODS_ANNOTATION = f"{GROUP}/pods"  # on a RayJob: its pods and their accelerators, by worker group, as JSON
CHECKSUM_ANNOTATION = f"{GROUP}/checksum"  # on a RayJob: digest of its entrypoint and the three annotations above
# On a queued RayJob: when it asked for another number of rollout pods, and how often it asked for all of them.
ASKED_ANNOTATION = f"{GROUP}/asked"
# files of the trainer pods
JOB_ANNOTATION = f"{GROUP}/job.yaml"
OVERRIDES_ANNOTATION = f"{GROUP}/overrides.txt"
OPEN_ANNOTATION = f"{GROUP}/open-ports"  # on a NetworkPolicy: ports that pods may reach at every address
PAUSE_ANNOTATION = f"{GROUP}/pause-rolling-update"  # on a job: its rollout and reward pods are not replaced
FIELD_MANAGER = "diffusionrl-operator"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # where a pod has its own
SELECTOR = JOB_LABEL  # on all objects of all jobs; policies of a cluster replace the label `managed-by`
RAYJOB_NAME_LIMIT = 47  # KubeRay's
# the end of a RayJob's name
LETTERS = string.ascii_lowercase
ATTEMPT = "[a-z][0-9]{2,6}"
# names of the worker groups
TRAINER_GROUP = "trainer"
ROLLOUT_GROUP = "rollout"
REWARD_GROUP = "reward"
_SCORER_GROUP = "scorer-"
POD_LIMITS = 1, 1024  # numbers of pods of a worker group that a running attempt may have, as the schema of jobs says


@dataclass(frozen=True, slots=True)
class RollingNames:
    """Names for the replacement of the pods of a worker group.

    Attributes:
        template: label of the pods: hash of the template they were created from.
        before: annotation of the RayCluster: the template before the replacement.
        replacing: annotation of the RayCluster: when the replacement began.
        refused: annotation of the RayCluster: the template that was given up.
    """

    template: str
    before: str
    replacing: str
    refused: str


def scorer_group(scorer: str) -> str:
    """The worker group of a scorer with a pool."""
    return f"{_SCORER_GROUP}{scorer.replace('_', '-')}"


def ends_no_attempt(group: str) -> bool:
    """Whether an attempt goes on when a pod of a worker group is lost, which KubeRay then replaces."""
    return group in (ROLLOUT_GROUP, REWARD_GROUP) or is_scorer_group(group)


def is_scorer_group(group: str) -> bool:
    """Whether a worker group is of a scorer with a pool."""
    return group.startswith(_SCORER_GROUP)


def rolling_names(group: str) -> RollingNames:
    """The names of a worker group."""
    return RollingNames(*(f"{GROUP}/{group}-{part}" for part in ("template", "before", "replacing", "refused")))


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a job's objects; `job` is the name of the job."""

    job: str

    def attempt(self, number: int) -> str:
        """The RayJob of an attempt.

        Where it would be longer than KubeRay allows, the letter counts as well: `-a99`, `-b00`, and so on to `-z99`.
        """
        digits = max(2, RAYJOB_NAME_LIMIT - len(self.job) - 2)
        letter, remainder = divmod(number, 10**digits)
        if letter < len(LETTERS):
            return f"{self.job}-{LETTERS[letter]}{remainder:0{digits if letter else 2}d}"
        return f"{self.job}-a{number:02d}"

    def number_of(self, name: str) -> int | None:
        """The attempt whose RayJob has this name; None if none has."""
        text = name.removeprefix(f"{self.job}-")
        if not re.fullmatch(ATTEMPT, text):
            return None
        number = LETTERS.index(text[0]) * 10 ** len(text[1:]) + int(text[1:])
        return number if number and self.attempt(number) == name else None

    def labels(self) -> dict[str, str]:
        """Labels of all objects of the job."""
        return {MANAGED_BY_LABEL: MANAGER, JOB_LABEL: self.job}

    def attempt_labels(self, number: int) -> dict[str, str]:
        """Labels of all objects of an attempt."""
        return {**self.labels(), ATTEMPT_LABEL: str(number)}


_RAYJOB = re.compile(rf"(.+)-{ATTEMPT}")
_RAYCLUSTER = re.compile(rf"(.+)-{ATTEMPT}-.+")


def job_of_rayjob(name: str) -> str | None:
    """The job whose attempt has a RayJob of this name; None if none may have."""
    match = _RAYJOB.fullmatch(name)
    return match[1] if match else None


def job_of_raycluster(name: str) -> str | None:
    """The same of a RayCluster, whose name KubeRay makes of the RayJob's and a random end."""
    match = _RAYCLUSTER.fullmatch(name)
    return match[1] if match else None


# Path of the operator's report endpoint.
REPORTS_PATH = "/v1/reports"


def report_audience(namespace: str, job: str) -> str:
    """Audience of the token that a job's reports carry."""
    return f"{API_VERSION}/namespaces/{namespace}/diffusionrljobs/{job}/report"
