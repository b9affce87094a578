"""Clusters that tests share: one of each kind for a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.cluster.errors import ToolMissing
from e2e.cluster.provider import NODES

FAKE_NODES = {"gpu-0": {"nvidia.com/gpu": 8}, "npu-0": {"huawei.com/Ascend910": 8}, "other-0": {"example.com/tpu": 4}}


def leave_out(error: ToolMissing) -> NoReturn:
    """Skip in one line what this machine cannot run; where `E2E_REQUIRED` is set, that is a failure."""
    if os.environ.get("E2E_REQUIRED"):
        raise error
    pytest.skip(f"left out: {error}")


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane with three fake nodes, each with devices of its own kind."""
    try:
        with control_plane(FAKE_NODES) as running:
            yield running
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture
def namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, on the control plane."""
    yield from own_namespace(plane, request)


@pytest.fixture(scope="session")
def bare() -> Iterator[BareCluster]:
    """The bare cluster: the one that stands already, which then stays, or one for this session."""
    cluster = BareCluster()
    stood = cluster.stands(NODES)
    try:
        cluster.create()
    except ToolMissing as error:
        leave_out(error)
    yield cluster
    if not stood:
        cluster.delete()


@pytest.fixture
def bare_namespace(bare: BareCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, on the bare cluster."""
    yield from own_namespace(bare.plane(), request)


def own_namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a namespace named by the test, and remove it."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())[:50].strip("-")
    with plane.api("e2e-namespace") as api:
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        plane.await_account(name)
        yield name
        api.delete(f"/api/v1/namespaces/{name}")
