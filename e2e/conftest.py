"""Clusters that tests share: one of each kind for a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.control_plane import ControlPlane, control_plane

FAKE_NODES = {"gpu-0": {"nvidia.com/gpu": 8}, "npu-0": {"huawei.com/Ascend910": 8}, "other-0": {"example.com/tpu": 4}}


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane with three fake nodes, each with devices of its own kind."""
    with control_plane(FAKE_NODES) as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, on the control plane."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower()).strip("-")[:50]
    with plane.api("e2e-namespace") as api:
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        yield name
        api.delete(f"/api/v1/namespaces/{name}")
