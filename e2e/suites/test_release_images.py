"""The image of a release, through a real registry: built, exported, copied by the documented command, and pulled."""

import json
from pathlib import Path

import httpx2
import pytest

from e2e import registry, release
from e2e.cluster.errors import ToolMissing
from e2e.cluster.processes import run
from e2e.conftest import leave_out
from e2e.images.catalog import OPERATOR, ROOT

pytestmark = [pytest.mark.bare, pytest.mark.timeout(900), pytest.mark.about("e2e/release.py", "images/operator")]

VERSION = "7.8.9"
NAME = f"omni-operator:{VERSION}"
COPY_S = 300.0
MANIFEST = {"Accept": "application/vnd.oci.image.manifest.v1+json"}


def test_the_operators_image_has_in_a_registry_the_digest_and_labels_of_the_release(tmp_path: Path) -> None:
    try:
        skopeo = str(registry.skopeo())
    except ToolMissing as error:
        leave_out(error)
    release.export_images([OPERATOR], VERSION, ROOT, tmp_path)
    archive = f"oci-archive:{tmp_path / f'omni-operator-{VERSION}.tar'}"
    digest, name, file = (tmp_path / release.DIGESTS).read_text().split()
    assert (name, f"oci-archive:{tmp_path / file}") == (NAME, archive)
    with registry.registry(tmp_path) as address:
        run([skopeo, "copy", "--dest-tls-verify=false", archive, f"docker://{address}/{NAME}"], deadline=COPY_S)
        manifest = httpx2.get(
            f"http://{address}/v2/omni-operator/manifests/{VERSION}", headers=MANIFEST, trust_env=False
        )
        assert manifest.headers["Docker-Content-Digest"] == digest
        pulled = f"docker://{address}/omni-operator@{digest}"
        described = json.loads(run([skopeo, "inspect", "--tls-verify=false", pulled], deadline=COPY_S))
        again = tmp_path / "again.tar"
        run([skopeo, "copy", "--src-tls-verify=false", pulled, f"oci-archive:{again}"], deadline=COPY_S)
    assert described["Labels"]["org.opencontainers.image.version"] == VERSION
    assert release.image_digest(again) == digest
