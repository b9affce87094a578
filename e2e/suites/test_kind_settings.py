"""kind itself reads the settings of a cluster; without a Docker daemon it stops there."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import deadlines
from e2e.cluster.kind import settings
from e2e.cluster.provider import NODES
from e2e.cluster.tools import KIND, ensure

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(("extra", "word"), [({}, "docker"), ({"nodez": []}, "unable to decode config")])
def test_kind_reads_its_settings(tmp_path: Path, extra: dict[str, object], word: str) -> None:
    """kind decodes settings before it calls the daemon: the error names the daemon only if they are valid."""
    command = settings.create_command(ensure((KIND,)), "omni-e2e", tmp_path / "kubeconfig")
    written = json.dumps(
        settings.configuration("omni-e2e", NODES, tmp_path, tmp_path / "volumes", "10.244.0.0/16") | extra
    )
    nowhere = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no.sock", "KIND_EXPERIMENTAL_PROVIDER": "docker"}
    done = subprocess.run(
        command, input=written, env=nowhere, capture_output=True, text=True, timeout=deadlines.COMMAND, check=False
    )
    assert done.returncode == 1
    assert word in done.stderr
