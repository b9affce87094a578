"""PURE: the pods of a job and its run folder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import TRAINER_GROUP
from omni_operator.cluster.cache.object_parser import is_ready, owner_of
from omni_operator.plan.entrypoint import LOG
from omni_operator.plan.pods.head import DASHBOARD
from omni_operator.plan.pods.storage import run_folder_path
from omni_operator.status.observed.observation import HEAD

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # KubeRay sets it from the Secret that it creates


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod of a job.

    Attributes:
        role: `head`, or its worker group: `trainer`, `rollout` or `reward`.
        phase: as in the pod's status.
        body: the whole object.
    """

    name: str
    role: str
    phase: str
    body: Mapping[str, Any]

    @property
    def runs(self) -> bool:
        """Whether it is running, and not being deleted."""
        return self.phase == "Running" and "deletionTimestamp" not in self.body["metadata"]

    @property
    def ready(self) -> bool:
        """Whether Ray's container is ready."""
        return is_ready(self.body.get("status") or {})


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a job's run folder is.

    Attributes:
        path: path of the run folder in the trainer pods.
        claim: name of the PersistentVolumeClaim; None if the job names none.
        mount: where the pods mount the claim.
    """

    path: str
    claim: str | None
    mount: str

    def describe_log(self) -> str:
        """Where the trainer's output is once the pods are gone."""
        if self.claim is None:
            return "the job has no spec.checkpoint.claimName: its run folder was on a volume of the pods"
        return f"the trainer's output is in {self.path}/{LOG} on the claim {self.claim}; drl fetch copies it"


def select_pod_bodies(bodies: Iterable[dict[str, Any]], cluster: str | None) -> list[dict[str, Any]]:
    """The pods whose controller is a RayCluster.

    Labels do not identify them: pods of a deleted job of the same name, for example, have the same labels.

    Args:
        cluster: uid of the RayCluster, from the job's status; None before there is one.
    """
    return [body for body in bodies if cluster and (owner := owner_of(body)) and owner.uid == cluster]


def parse_pods(bodies: Iterable[Mapping[str, Any]]) -> tuple[JobPod, ...]:
    """The pods of one RayCluster, the head last."""
    return tuple(sorted(map(_pod, bodies), key=lambda pod: (pod.role == HEAD, pod.name)))


def run_place(job: Mapping[str, Any]) -> RunPlace | None:
    """Where the run folder is; None if this version cannot read the job."""
    try:
        parsed = DiffusionRLJob.model_validate({**job, "status": {}})
    except ValidationError:
        return None
    return RunPlace(run_folder_path(parsed), parsed.spec.checkpoint.claim_name, parsed.spec.checkpoint.path)


def _pod(body: Mapping[str, Any]) -> JobPod:
    labels = body["metadata"].get("labels") or {}
    return JobPod(
        name=str(body["metadata"]["name"]),
        role=HEAD if labels.get("ray.io/node-type") == "head" else str(labels.get("ray.io/group") or TRAINER_GROUP),
        phase=str((body.get("status") or {}).get("phase") or "Pending"),
        body=body,
    )


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Ray's dashboard of a running job.

    Attributes:
        secret, key: the Secret with its token, and the key in it; None if it asks for none.
    """

    pod: str
    port: int
    secret: str | None
    key: str | None

    def describe_token(self, namespace: str) -> str:
        """Where the token is."""
        if self.secret is None:
            return "it asks for no token"
        key = (self.key or "").replace(".", "\\.")
        return (
            f"its token: kubectl get secret {self.secret} --namespace {namespace} "
            f"--output jsonpath='{{.data.{key}}}' | base64 --decode"
        )


def find_dashboard(pods: Iterable[JobPod]) -> Dashboard | None:
    """The dashboard on the head pod; None if that is not ready."""
    head = next((pod for pod in pods if pod.role == HEAD and pod.ready), None)
    if head is None:
        return None
    for container in head.body["spec"]["containers"]:
        for entry in container.get("env", ()):
            reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
            if entry["name"] == TOKEN_VARIABLE and reference:
                return Dashboard(head.name, DASHBOARD, str(reference["name"]), str(reference["key"]))
    return Dashboard(head.name, DASHBOARD, None, None)
