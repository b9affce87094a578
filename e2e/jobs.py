"""Jobs on an API server: what tests write, read and wait for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.errors import DeadlinePassed
from omni_operator.api.names import report_audience

JOB_SEEN = 30.0


@dataclass
class Job:
    """A job, as its owner sees it.

    Attributes:
        patience: seconds that the operator may take.
    """

    api: Api
    namespace: str
    name: str
    patience: float = field(default=JOB_SEEN, kw_only=True)

    @property
    def path(self) -> str:
        return f"/apis/diffusionrl.io/v1alpha1/namespaces/{self.namespace}/diffusionrljobs"

    @property
    def own_path(self) -> str:
        return f"{self.path}/{self.name}"

    def ray(self, plural: str, name: str = "") -> str:
        return f"/apis/ray.io/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def create(
        self, spec: dict[str, Any], labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
    ) -> None:
        meta = {"name": self.name, "labels": labels or {}, "annotations": annotations or {}}
        body = {"apiVersion": "diffusionrl.io/v1alpha1", "kind": "DiffusionRLJob", "metadata": meta}
        self.api.post(self.path, {**body, "spec": spec})

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.get(self.own_path).get("status") or {}
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        return condition(self.status(), kind)

    def await_condition(
        self, kind: str, status: str, reason: str = "", *, within: float | None = None
    ) -> dict[str, Any]:
        """The condition, once it says this."""

        def there(found: dict[str, Any]) -> bool:
            current = condition(found, kind)
            return current.get("status") == status and reason in ("", current.get("reason"))

        return condition(self.await_status(f"{kind}={status} {reason}", there, within), kind)

    def await_status(
        self, what: str, good: Callable[[dict[str, Any]], bool], within: float | None = None
    ) -> dict[str, Any]:
        """The status, once it is good."""
        seen: dict[str, Any] = {}

        def there() -> bool:
            seen.clear()
            seen.update(self.status())
            return good(seen)

        try:
            deadlines.wait_until(what, self.patience if within is None else within, there)
        except DeadlinePassed as error:
            raise AssertionError(f"{error}; the status is {seen}") from error
        return seen

    def attempt(self, number: int) -> str:
        return f"{self.name}-a{number:02d}"

    def await_gone(self) -> None:
        """The job is there no longer."""
        deadlines.wait_until(f"{self.name} to be gone", self.patience, lambda: self.api.gone(self.own_path))


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of a status by its type; empty if it has none."""
    return next((item for item in status.get("conditions", ()) if item["type"] == kind), {})


@dataclass
class JobOnPlane(Job):
    """A job and its children on a control plane; what KubeRay and kubelets would write, the test writes."""

    name: str = "red"
    spec: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def submit(self) -> None:
        spec = {
            "model": {"base": "/models/shapes-sd3"},
            "data": {"train": ["/data/prompts.jsonl"]},
            "reward": {"scorers": [{"name": "color"}]},
            "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA"}},
            "rollout": {"replicas": 1},
            "checkpoint": {"claimName": "ckpt"},
            **self.spec,
        }
        self.create(spec, self.labels, self.annotations)

    def await_attempt(self, number: int) -> dict[str, Any]:
        """Its RayJob, once it is there."""

        def there() -> dict[str, Any] | None:
            try:
                return self.api.get(self.ray("rayjobs", self.attempt(number)))
            except ApiError as error:
                if error.code == httpx2.codes.NOT_FOUND:
                    return None
                raise

        return deadlines.wait_until(f"attempt {number}", JOB_SEEN, there)

    def await_events(self, *reasons: str) -> list[str]:
        """The reasons of the namespace's events, once the given ones are among them: they follow the status."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"

        def there() -> list[str] | None:
            seen = [event["reason"] for event in self.api.get(path)["items"]]
            return seen if {*reasons} <= {*seen} else None

        return deadlines.wait_until(f"events {', '.join(reasons)}", JOB_SEEN, there)

    def run(self, number: int) -> None:
        """KubeRay makes the RayCluster, its head is ready, and Ray runs the job."""
        cluster = self.add_cluster(number)
        self.head(number, "True", "HeadPodRunningAndReady")
        self.set_running(number, rayClusterName=cluster)

    def set_running(self, number: int, **status: Any) -> None:
        """KubeRay says that Ray runs the job."""
        status = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "startTime": now(), **status}
        self.api.patch(f"{self.ray('rayjobs', self.attempt(number))}/status", {"status": status})

    def cluster_name(self, number: int) -> str:
        """Name of the RayCluster that `add_cluster` makes."""
        return f"{self.attempt(number)}-x1"

    def cluster_path(self, number: int) -> str:
        """Path of the RayCluster that `add_cluster` makes."""
        return self.ray("rayclusters", self.cluster_name(number))

    def add_cluster(self, number: int) -> str:
        """KubeRay makes the RayCluster of an attempt; its name."""
        rayjob = self.await_attempt(number)
        name = self.attempt(number)
        cluster = self.cluster_name(number)
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": name, "uid": rayjob["metadata"]["uid"]}
        self.api.post(
            self.ray("rayclusters"),
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {
                    "name": cluster,
                    "labels": rayjob["metadata"]["labels"],
                    "ownerReferences": [{**owner, "controller": True}],
                },
                "spec": rayjob["spec"]["rayClusterSpec"],
            },
        )
        return cluster

    def add_trainer(self, number: int, account: str = "default") -> tuple[str, str]:
        """KubeRay makes a trainer pod; its name and uid."""
        return self.add_pod(number, "worker", "trainer", account)

    def add_pod(self, number: int, suffix: str, group: str, account: str = "default") -> tuple[str, str]:
        """KubeRay makes a pod of a group; its name and uid."""
        body = self.api.get(self.cluster_path(number))
        cluster = body["metadata"]
        groups = body.get("spec", {}).get("workerGroupSpecs", ())
        template: dict[str, Any] = next((item["template"] for item in groups if item["groupName"] == group), {})
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster["name"], "uid": cluster["uid"]}
        meta = {
            "name": f"{cluster['name']}-{suffix}",
            "labels": {
                **template.get("metadata", {}).get("labels", {}),
                **cluster["labels"],
                "ray.io/node-type": "worker",
                "ray.io/group": group,
            },
            "ownerReferences": [{**owner, "controller": True}],
        }
        spec = {"serviceAccountName": account, "containers": [{"name": "main", "image": "rollout:1"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        stored = self.api.post(f"/api/v1/namespaces/{self.namespace}/pods", body)["metadata"]
        return str(stored["name"]), str(stored["uid"])

    def report_token(self, pod: tuple[str, str] | None, job: str | None = None) -> str:
        """A token for reports about a job, this one by default, bound to a pod."""
        audience = report_audience(self.namespace, job or self.name)
        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod[0], "uid": pod[1]}} if pod else {}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token"
        return str(self.api.post(path, {"spec": {"audiences": [audience], **bound}})["status"]["token"])

    def start(self) -> None:
        """A new job, until its first attempt runs."""
        self.submit()
        self.run(1)
        self.await_condition("Ready", "True")

    def run_and_lose_a_head(self) -> None:
        """A new job runs, loses its head, and runs again in a second attempt; it needs `backoffLimit`."""
        self.start()
        self.head(1, "False", "HeadPodNotFound")
        self.run(2)
        self.await_condition("Ready", "True")

    def head(self, number: int, status: str, reason: str) -> None:
        """KubeRay says how the head is."""
        conditions = [
            {"type": kind, "status": value, "reason": why, "message": "", "lastTransitionTime": now()}
            for kind, value, why in (
                ("HeadPodReady", status, reason),
                ("RayClusterProvisioned", "True", "AllPodRunningAndReadyFirstTime"),
            )
        ]
        path = f"{self.ray('rayclusters', self.attempt(number) + '-x1')}/status"
        status_ = {"conditions": conditions, "state": "ready", "desiredWorkerReplicas": 1, "readyWorkerReplicas": 1}
        self.api.patch(path, {"status": status_})

    def end(self, number: int, job: str = "SUCCEEDED", message: str = "") -> None:
        """KubeRay sees the end of the Ray job."""
        deployment = "Complete" if job == "SUCCEEDED" else "Failed"
        status = {"jobDeploymentStatus": deployment, "jobStatus": job, "message": message, "endTime": now()}
        if job != "SUCCEEDED":
            status["reason"] = "AppFailed"
        self.api.patch(f"{self.ray('rayjobs', self.attempt(number))}/status", {"status": status})


def now() -> str:
    """A Kubernetes timestamp."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
