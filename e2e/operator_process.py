"""The operator as a process on a control plane, and a KubeRay that does what a test says."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from e2e.cluster import waits
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import DeadlinePassed
from e2e.cluster.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
AGENT = "diffusionrl-operator/"
OPERATOR_READY = 60.0
JOB_SEEN = 30.0
STOPPED = 30.0


@dataclass
class RunningOperator:
    """A started operator; `http` and `reports` are its ports."""

    process: subprocess.Popen[bytes]
    http: int
    reports: int
    log: Path

    def page(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.http}{path}", timeout=10, trust_env=False)

    def ready(self) -> bool:
        """Whether it says so.

        Raises:
            AssertionError: it has ended; its log is in the message.
        """
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return self.page("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@contextmanager
def operator(
    plane: ControlPlane, folder: Path, kubeconfig: Path | None = None, **settings: str
) -> Iterator[RunningOperator]:
    """An operator on the control plane, ready; stopped by SIGTERM at the end.

    Args:
        kubeconfig: of whom it is; an administrator's if not given.
        settings: its variables, without their prefix.
    """
    http, reports = free_ports(2, random.Random())
    log = folder / "operator.log"
    variables = {"HTTP_PORT": str(http), "REPORTS_PORT": str(reports), "IMAGE": "rollout:1", **settings}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "PYTHONPATH": str(ROOT / "operator"),
        "PYTHONSAFEPATH": "1",
        "KUBECONFIG": str(kubeconfig or plane.kubeconfig),
        **{f"OMNI_OPERATOR_{name}": value for name, value in variables.items()},
    }
    python = os.environ.get("OPERATOR_PYTHON", sys.executable)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [python, "-m", "omni_operator.main"], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        running = RunningOperator(process, http, reports, log)
        try:
            waits.until("the operator to be ready", OPERATOR_READY, running.ready)
            yield running
        finally:
            process.terminate()
            try:
                process.wait(STOPPED)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def install(plane: ControlPlane, *, kuberay: bool = True) -> None:
    """Our CRD and KubeRay's, served."""
    plane.kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    served = ["/apis/diffusionrl.io/v1alpha1/diffusionrljobs"]
    if kuberay:
        crds = plane.layout.tools.kuberay / "crd" / "bases"
        for name in ("rayjobs", "rayclusters"):
            plane.kubectl("apply", "--server-side", f"--filename={crds / f'ray.io_{name}.yaml'}")
            served.append(f"/apis/ray.io/v1/{name}")
    with plane.api("e2e-install") as api:
        for path in served:
            waits.until(f"{path} to be served", waits.API_READY, functools.partial(_served, api, path))


def _served(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except (ApiError, ValueError):  # before a group is known the answer is a page of text
        return False
    return True


@dataclass
class JobOnPlane:
    """A job and its children on a control plane; what KubeRay and kubelets would write, the test writes."""

    api: Api
    namespace: str
    name: str = "red"
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/apis/diffusionrl.io/v1alpha1/namespaces/{self.namespace}/diffusionrljobs"

    def ray(self, plural: str, name: str = "") -> str:
        return f"/apis/ray.io/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

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
        body = {"apiVersion": "diffusionrl.io/v1alpha1", "kind": "DiffusionRLJob", "metadata": {"name": self.name}}
        self.api.post(self.path, {**body, "spec": spec})

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"{self.path}/{self.name}").get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        return next((item for item in self.status().get("conditions", ()) if item["type"] == kind), {})

    def await_condition(self, kind: str, status: str, reason: str = "") -> dict[str, Any]:
        """The condition, once it says this."""

        def there() -> dict[str, Any] | None:
            found = self.condition(kind)
            return found if found.get("status") == status and reason in ("", found.get("reason")) else None

        try:
            return waits.until(f"{kind}={status} {reason}", JOB_SEEN, there)
        except DeadlinePassed as error:
            raise AssertionError(f"{error}; the status is {self.status()}") from error

    def attempt(self, number: int) -> str:
        return f"{self.name}-a{number:02d}"

    def await_attempt(self, number: int) -> dict[str, Any]:
        """Its RayJob, once it is there."""

        def there() -> dict[str, Any] | None:
            try:
                return self.api.get(self.ray("rayjobs", self.attempt(number)))
            except ApiError as error:
                if error.code == httpx.codes.NOT_FOUND:
                    return None
                raise

        return waits.until(f"attempt {number}", JOB_SEEN, there)

    def run(self, number: int) -> None:
        """KubeRay makes the RayCluster, its head is ready, and Ray runs the job."""
        rayjob = self.await_attempt(number)
        name, cluster = self.attempt(number), f"{self.attempt(number)}-x1"
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": name, "uid": rayjob["metadata"]["uid"]}
        self.api.post(self.ray("rayclusters"), {
            "apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": {
                "name": cluster, "labels": rayjob["metadata"]["labels"],
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": rayjob["spec"]["rayClusterSpec"],
        })  # fmt: skip
        self.head(number, "True", "HeadPodRunningAndReady")
        self.api.patch(f"{self.ray('rayjobs', name)}/status", {
            "status": {
                "jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": cluster, "startTime": now(),
            }
        })  # fmt: skip

    def run_and_lose_a_head(self) -> None:
        """A new job runs, loses its head, and runs again in a second attempt; it needs `backoffLimit`."""
        self.submit()
        self.run(1)
        self.await_condition("Ready", "True")
        self.head(1, "False", "HeadPodNotFound")
        self.run(2)
        self.await_condition("Ready", "True")

    def await_gone(self) -> None:
        """The job is there no longer."""
        waits.until(f"{self.name} to be gone", JOB_SEEN, lambda: self.api.gone(f"{self.path}/{self.name}"))

    def head(self, number: int, status: str, reason: str) -> None:
        """KubeRay says how the head is."""
        conditions = [
            {"type": kind, "status": value, "reason": why, "message": "", "lastTransitionTime": now()}
            for kind, value, why in (
                ("HeadPodReady", status, reason), ("RayClusterProvisioned", "True", "AllPodRunningAndReadyFirstTime"),
            )
        ]  # fmt: skip
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
