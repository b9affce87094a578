"""The operator as a process on a control plane."""

import functools
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import kuberay_files

ROOT = Path(__file__).resolve().parents[1]
AGENT = "diffusionrl-operator/"
OPERATOR_READY = 180.0
JOB_SEEN = 30.0
STOPPED = 30.0


@dataclass
class RunningOperator:
    """A started operator; `http` and `reports` are its ports."""

    process: subprocess.Popen[bytes]
    http: int
    reports: int
    log: Path

    def page(self, path: str) -> httpx2.Response:
        return httpx2.get(f"http://127.0.0.1:{self.http}{path}", timeout=10, trust_env=False)

    def ready(self) -> bool:
        """Whether it says so.

        Raises:
            AssertionError: it has ended; its log is in the message.
        """
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return self.page("/readyz").status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False


@contextmanager
def operator(
    plane: ControlPlane, folder: Path, kubeconfig: Path | None = None, **settings: str | None
) -> Iterator[RunningOperator]:
    """An operator on the control plane, ready; stopped by SIGTERM at the end.

    Args:
        kubeconfig: credentials of the operator; default: an administrator's.
        settings: its environment variables, without their prefix; None leaves a variable unset. Without LEASE the
            operator gets a new Lease, so it leads at once.
    """
    http, reports = free_ports(2, random.Random())
    log = folder / "operator.log"
    variables: dict[str, str | None] = {
        "HTTP_PORT": str(http),
        "REPORTS_PORT": str(reports),
        "IMAGE": "rollout:1",
        "LEASE": f"operator-{uuid.uuid4().hex}",
        **settings,
    }
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "PYTHONPATH": str(ROOT / "operator"),
        "PYTHONSAFEPATH": "1",
        "KUBECONFIG": str(kubeconfig or plane.kubeconfig),
        **{f"OMNI_OPERATOR_{name}": value for name, value in variables.items() if value is not None},
    }
    python = os.environ.get("OPERATOR_PYTHON", sys.executable)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [python, "-m", "omni_operator.main"], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        running = RunningOperator(process, http, reports, log)
        try:
            deadlines.wait_until("the operator to be ready", OPERATOR_READY, running.ready)
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
    """The operator's CRD and KubeRay's, served."""
    plane.kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    _await_served(plane, ["/apis/diffusionrl.io/v1alpha1/diffusionrljobs"])
    if kuberay:
        install_kuberay(plane)


def install_kuberay(plane: ControlPlane) -> None:
    """KubeRay's kinds, served; what KubeRay would do, the tests do."""
    crds = kuberay_files() / "crd" / "bases"
    names = ("rayjobs", "rayclusters")
    for name in names:
        plane.kubectl("apply", "--server-side", f"--filename={crds / f'ray.io_{name}.yaml'}")
    _await_served(plane, [f"/apis/ray.io/v1/{name}" for name in names])


def _await_served(plane: ControlPlane, paths: Sequence[str]) -> None:
    with plane.api("e2e-install") as api:
        for path in paths:
            deadlines.wait_until(f"{path} to be served", deadlines.API_READY, functools.partial(is_served, api, path))
    # Aggregated discovery, which helm and kubectl read, is updated some time later.
    versions = {path.removeprefix("/apis/").rpartition("/")[0] for path in paths}
    deadlines.wait_until(
        f"{', '.join(versions)} in discovery",
        deadlines.API_READY,
        lambda: versions <= set(plane.kubectl("api-versions").split()),
    )


def is_served(api: Api, path: str) -> bool:
    """Whether the API server serves a kind."""
    try:
        api.get(path)
    except (ApiError, ValueError):  # before a group is known the answer is a page of text
        return False
    return True
