"""Claims whose volumes are folders of this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.provider import Cluster
from e2e.system import System

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, slots=True)
class Volumes:
    """What `System.claim` uses of a cluster."""

    plane: ControlPlane
    volumes: Path

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.plane.kubectl(*arguments, text=text)


def test_a_claim_that_was_deleted_can_be_made_again_and_is_empty(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """As of a test that runs again on the same cluster: Kubernetes binds no claim to a released volume."""
    unused: Any = None
    system = System(cast(Cluster, Volumes(plane, tmp_path)), unused, unused, unused, unused)
    (system.claim(namespace, "runs") / "checkpoint").touch()
    assert (system.claim(namespace, "runs") / "checkpoint").exists()
    plane.kubectl("delete", "persistentvolumeclaim", "runs", f"--namespace={namespace}")
    assert list(system.claim(namespace, "runs").iterdir()) == []
