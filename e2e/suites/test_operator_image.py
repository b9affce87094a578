"""The operator's image: its content, and a job run as an unprivileged user on a read-only root file system."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import helm
from e2e.cluster import deadlines
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.cluster.errors import ToolMissing
from e2e.cluster.paths import cache
from e2e.conftest import leave_out
from e2e.images.build import build
from e2e.images.builders import choose
from e2e.images.catalog import OPERATOR, ROOT
from e2e.images.unpacked import Unpacked, unpacked
from e2e.jobs import JobOnPlane
from e2e.operator_process import install_kuberay, operator
from e2e.suites.test_chart_installed import ACCOUNT, NAME, SYSTEM, installed

pytestmark = [pytest.mark.bare, pytest.mark.about("images/operator", "requirements/operator.txt")]

ACCOUNT_FOLDER = "/run/secrets/kubernetes.io/serviceaccount"  # /var/run is a link to /run


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unpacked]:
    kept = cache() / "archives"
    try:
        built = build(OPERATOR, choose(kept / "buildah", print), kept, print)
    except ToolMissing as error:
        leave_out(error)
        raise
    with unpacked(built.image, tmp_path_factory.mktemp("image")) as unpacked_image:
        yield unpacked_image


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane with the chart installed."""
    try:
        program = helm.helm()
        with control_plane({"node-0": {}}, parent=tmp_path) as running:
            install_kuberay(running)
            installed(program, running)
            yield running
    except ToolMissing as error:
        leave_out(error)
        raise


def account_folder(plane: ControlPlane, folder: Path) -> Path:
    """The operator's service account as a kubelet mounts it, readable for the image's user."""
    account = folder / "account"
    account.mkdir()
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{NAME}/token"
    with plane.api("e2e-token") as api:
        token = api.post(path, {"spec": {}})["status"]["token"]
    authority = plane.authority.certificate.read_text()
    for name, content in (("token", token), ("ca.crt", authority), ("namespace", SYSTEM)):
        account.joinpath(name).write_text(content)
        account.joinpath(name).chmod(0o644)
    for parent in (folder, *folder.parents[:2], account):
        parent.chmod(0o755)
    return account


def test_it_contains_the_locked_packages_and_no_others(image: Unpacked) -> None:
    locked = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / "operator.txt").read_text(), re.MULTILINE)
    (site,) = (image.root / "opt/omni/env/lib").glob("python3.*/site-packages")
    packages = {path.name.removesuffix(".dist-info").replace("_", "-").lower() for path in site.glob("*.dist-info")}
    expected = {f"{name}-{version}" for name, version in locked}
    assert {name.replace(".", "-") for name in packages if not name.startswith("omni-operator-")} == {
        name.replace(".", "-") for name in expected
    }
    assert (site / "omni_operator/main.py").exists()
    assert list((site / "omni_operator/__pycache__").glob("main.*.pyc"))
    assert (site / "verl_omni/reward_loop/rewards").exists()


def test_its_configuration_names_user_entrypoint_and_ports(image: Unpacked) -> None:
    assert image.config["User"] == "65532:65532"
    assert image.config["Entrypoint"] == ["python", "-m", "omni_operator.main"]
    assert set(image.config["ExposedPorts"]) == {"8080/tcp", "8090/tcp"}
    assert "PYTHONSAFEPATH=1" in image.config["Env"]


def test_without_credentials_it_exits_with_an_error(image: Unpacked, tmp_path: Path) -> None:
    runner = image.runner(tmp_path / "run", {}, {Path("/dev"): "/dev"})
    done = subprocess.run(
        [runner, *image.config["Entrypoint"]],
        capture_output=True,
        text=True,
        timeout=deadlines.COMMAND,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "no credentials for the API server: KUBECONFIG is not set, and neither "
        "/var/run/secrets/kubernetes.io/serviceaccount/token nor /.kube/config exists",
    )


def test_it_runs_a_job_without_writable_folders(
    image: Unpacked, plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.layout.api_port)}
    mounted = {Path("/dev"): "/dev", account_folder(plane, tmp_path): ACCOUNT_FOLDER}
    runner = image.runner(tmp_path / "run", variables, mounted)
    code = (
        "import os\n"
        "writable = [folder for folder, _, _ in os.walk('/') if not folder.startswith(('/proc', '/sys', '/dev'))"
        " and os.access(folder, os.W_OK)]\n"
        "print(os.getuid(), writable, open('/proc/self/status').read().count('0000000000000000') if"
        " os.path.exists('/proc/self/status') else '')"
    )
    printed = subprocess.run(
        [runner, "python", "-c", code], capture_output=True, text=True, timeout=deadlines.COMMAND, check=True
    )
    assert printed.stdout.split(maxsplit=1)[0] == "65532"
    assert "[]" in printed.stdout
    # `python -m omni_operator.main`, but in the image.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {runner} python "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("OPERATOR_PYTHON", str(python))
    with operator(plane, tmp_path, NAMESPACE=SYSTEM, LEASE=NAME) as running, plane.api() as api:
        assert Path(f"/proc/{running.process.pid}/root").resolve() == image.root.resolve()
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        assert re.search(r"^Uid:\s+65532\s+65532", status, re.MULTILINE)
        assert re.search(r"^CapBnd:\s+0000000000000000$", status, re.MULTILINE)
        job = JobOnPlane(api, "default")
        job.start()
        job.end(1)
        job.await_condition("Succeeded", "True")
    calls = [call for call in plane.audit.calls() if call.user == ACCOUNT]
    assert calls
    assert [call for call in calls if call.code in (401, 403)] == []
