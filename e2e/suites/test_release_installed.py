"""Releases on a cluster: chart and operator from a registry, installed, upgraded with a job running, and rolled back.

The nodes are fake, so no kubelet pulls: the test pulls the image that the Deployment names, and runs the operator from
it with the Deployment's settings and its service account.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from e2e import helm as tool
from e2e import registry as local
from e2e import release
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ToolMissing
from e2e.cluster.processes import run
from e2e.conftest import leave_out
from e2e.images.catalog import OPERATOR, ROOT
from e2e.images.unpacked import Unpacked, unpacked
from e2e.jobs import JobOnPlane
from e2e.operator_process import install_kuberay, operator
from e2e.release_tree import add_fragment, copy_tree
from e2e.suites.test_chart_installed import ACCOUNT, DEPLOYMENT, SYSTEM, denied, run_helm, settings
from e2e.suites.test_operator_image import ACCOUNT_FOLDER, account_folder

pytestmark = [pytest.mark.bare, pytest.mark.timeout(900), pytest.mark.about("e2e/release.py", "charts")]

OLD, NEW = "7.8.9", "7.9.0"
COPY_S = 300.0
JOBS_IMAGE = "rollout:1"


@dataclass(frozen=True, slots=True)
class Published:
    """Two releases in a registry: `digests` are those of the operator's image, from the files of each release."""

    address: str
    helm: Path
    skopeo: Path
    digests: dict[str, str]

    def chart(self, version: str) -> list[str]:
        """Helm's arguments for the chart, as docs/release.md writes them."""
        return [
            f"oci://{self.address}/charts/omni-operator", "--plain-http", f"--version={version}", "--wait",
            f"--set=image.repository={self.address}/omni-operator", f"--set=jobs.image={JOBS_IMAGE}",
        ]  # fmt: skip


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Published]:
    """Both releases, made by the release's code and pushed by the commands of docs/release.md.

    Their images have the same files and the labels of their versions: another build would take minutes.
    """
    try:
        helm, skopeo = tool.helm(), local.skopeo()
    except ToolMissing as error:
        leave_out(error)
    tree = copy_tree(tmp_path / "tree")
    content = tmp_path / "registry"
    content.mkdir()
    with local.registry(content) as address:
        digests = {}
        for version in (OLD, NEW):
            add_fragment(tree)
            out = tmp_path / version
            release.release(version, tree, out, (), date(2026, 1, 2), helm)
            release.export_images([OPERATOR], version, ROOT, out)
            digests[version] = (out / release.DIGESTS).read_text().split()[0]
            archive = f"oci-archive:{out / f'omni-operator-{version}.tar'}"
            pushed = f"docker://{address}/omni-operator:{version}"
            run([str(skopeo), "copy", "--dest-tls-verify=false", archive, pushed], deadline=COPY_S)
            chart = out / f"omni-operator-{version}.tgz"
            run([str(helm), "push", str(chart), f"oci://{address}/charts", "--plain-http"], deadline=COPY_S)
        yield Published(address, helm, skopeo, digests)


@contextmanager
def deployed(published: Published, plane: ControlPlane, api: Api, version: str, folder: Path) -> Iterator[None]:
    """The operator that the cluster's Deployment names, which must be of `version`: pulled, and run until the end."""
    folder.mkdir()
    (container,) = api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{published.address}/omni-operator:{version}"
    pulled, archive = folder / "pulled.tar", folder / "gzip.tar"
    copy = [str(published.skopeo), "copy", "--src-tls-verify=false"]
    run([*copy, f"docker://{container['image']}", f"oci-archive:{pulled}"], deadline=COPY_S)
    assert release.image_digest(pulled) == published.digests[version]
    # Python's tarfile does not read zstd, with which buildah compresses layers.
    run([*copy, "--dest-compress-format=gzip", f"oci-archive:{pulled}", f"oci-archive:{archive}"], deadline=COPY_S)
    with unpacked(archive, folder / "image") as image, running(image, plane, api, folder):
        yield


@contextmanager
def running(image: Unpacked, plane: ControlPlane, api: Api, folder: Path) -> Iterator[None]:
    """The image's program, as the Deployment's pod would run it: its user, settings and service account."""
    variables = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.layout.api_port)}
    mounted = {Path("/dev"): "/dev", account_folder(plane, folder): ACCOUNT_FOLDER}
    runner = image.runner(folder / "run", variables, mounted)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {runner} python "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in settings(api).items() if not name.endswith("_PORT")}
    assert kept["IMAGE"] == JOBS_IMAGE
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPERATOR_PYTHON", str(python))
        with operator(plane, folder, **{**kept, "NAMESPACE": SYSTEM, "RETRY_SECONDS": "0.1"}) as started:
            assert Path(f"/proc/{started.process.pid}/root").resolve() == image.root.resolve()
            yield


def test_a_release_installs_from_a_registry_upgrades_with_a_job_running_and_rolls_back(
    published: Published, empty: ControlPlane, tmp_path: Path
) -> None:
    install_kuberay(empty)
    with empty.api() as api:
        run_helm(published.helm, empty, "install", "omni", "--create-namespace", *published.chart(OLD))
        first, second = JobOnPlane(api, "default", "first"), JobOnPlane(api, "default", "second")
        with deployed(published, empty, api, OLD, tmp_path / "one"):
            first.start()
        before = api.get(first.ray("rayjobs", first.attempt(1)))["metadata"]

        run_helm(published.helm, empty, "upgrade", "omni", *published.chart(NEW))
        with deployed(published, empty, api, NEW, tmp_path / "two"):
            second.start()
        assert api.get(first.ray("rayjobs", first.attempt(1)))["metadata"]["generation"] == before["generation"]

        run_helm(published.helm, empty, "rollback", "omni", "1", "--wait")
        with deployed(published, empty, api, OLD, tmp_path / "three"):
            for job in (first, second):
                job.end(1)
                job.await_condition("Succeeded", "True")
        assert api.get(first.ray("rayjobs", first.attempt(1)))["metadata"]["uid"] == before["uid"]
        assert [job.status()["attempts"] for job in (first, second)] == [1, 1]
        assert {call.verb for call in empty.audit.calls() if call.user == ACCOUNT} >= {"watch", "patch", "create"}
        assert denied(empty) == set()
