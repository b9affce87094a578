"""Clusters that tests share: one of each kind for a session."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from e2e import turns
from e2e.cluster import deadlines
from e2e.cluster.__main__ import named
from e2e.cluster.api import CONFLICT, NOT_FOUND, Api, ApiError
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.cluster.errors import ToolMissing
from e2e.cluster.provider import NODES, Cluster
from e2e.system import System, bring_up

ROOT = Path(__file__).resolve().parents[1]
DIGEST = "digest"
FAKE_NODES = {"gpu-0": {"nvidia.com/gpu": 8}, "npu-0": {"huawei.com/Ascend910": 8}, "other-0": {"example.com/tpu": 4}}


def leave_out(error: ToolMissing) -> NoReturn:
    """Skip a test that this machine cannot run, with the reason; with `E2E_REQUIRED` it fails."""
    if os.environ.get("E2E_REQUIRED"):
        raise error
    pytest.skip(f"left out: {error}")


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane with three fake nodes, each with another kind of accelerator."""
    try:
        with control_plane(FAKE_NODES) as running:
            yield running
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture
def namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, on the control plane."""
    yield from own_namespace(plane, request)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the whole system come first: a running cluster that lacks their images would be created again.

    With `TESTS_END_BY` (seconds since 1970) the tests on whole clusters that have no turn are skipped.
    """
    items.sort(key=lambda item: "system" not in getattr(item, "fixturenames", ()))
    candidates = {item: as_candidate(item) for item in items if item.get_closest_marker("bare")}
    for item, candidate in candidates.items():
        item.user_properties.append((DIGEST, candidate.digest))  # for `make test-times`, in the JUnit report
    if end := os.environ.get("TESTS_END_BY"):
        records = turns.known()
        chosen = turns.choose(list(candidates.values()), records, float(end) - time.time())
        for item, candidate in candidates.items():
            if candidate.name not in chosen:
                passed = f"passed on {records[candidate.name].at[:10]}" if candidate.name in records else "new"
                item.add_marker(pytest.mark.skip(reason=f"no time left; it has its turn in a later run ({passed})"))


def as_candidate(item: pytest.Item) -> turns.Candidate:
    """A test on a whole cluster, and what it consists of: its file and what its marks name."""
    about = [ROOT / path for mark in item.iter_markers("about") for path in mark.args]
    absent = [path for path in about if not path.exists()]
    if absent:
        raise pytest.UsageError(f"{item.nodeid}: the mark `about` names what is not there: {absent}")
    digest = turns.digest([item.path, *about], ROOT)
    return turns.Candidate(item.nodeid, digest, item.get_closest_marker("every_run") is not None)


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    """The cluster that `OMNI_CLUSTER` names, else the bare one: started by the fixtures that use it.

    It is removed at the end unless it was running before.
    """
    cluster = named(os.environ.get("OMNI_CLUSTER") or "bare", print)
    stood = cluster.is_running(NODES)
    yield cluster
    if not stood:
        cluster.delete()


@pytest.fixture(scope="session")
def bare(whole_cluster: Cluster) -> BareCluster:
    """The bare cluster: the one that is running already, or one for this session."""
    cluster = as_bare(whole_cluster)
    try:
        cluster.create()
    except ToolMissing as error:
        leave_out(error)
    return cluster


def as_bare(cluster: Cluster) -> BareCluster:
    """The cluster, for tests that need a bare cluster; they are left out on any other."""
    if not isinstance(cluster, BareCluster):
        leave_out(ToolMissing("the test needs a bare cluster: run it with OMNI_CLUSTER=bare"))
    return cluster


@pytest.fixture(scope="session")
def system(whole_cluster: Cluster) -> System:
    """The cluster with the operator on it."""
    try:
        return bring_up(whole_cluster, print)
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture
def bare_namespace(bare: BareCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, on the bare cluster."""
    yield from own_namespace(bare.plane(), request)


def own_namespace(cluster: ControlPlane | Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a namespace named by the test, and remove it."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())[:50].strip("-")
    with cluster.api("e2e-namespace") as api:
        make_empty(api, name)
        cluster.await_account(name)
        yield name
        remove(api, name)  # the test may have deleted it


def make_empty(api: Api, name: str) -> None:
    """Make a namespace, after the one of this name is gone that a killed test left."""

    def made() -> bool:
        try:
            api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            return False
        return True

    if not made():
        remove(api, name)
        deadlines.wait_until(
            f"namespace {name}, which an earlier test left, to be gone", deadlines.NAMESPACE_GONE, made
        )


def remove(api: Api, name: str) -> None:
    """Delete a namespace, if it is there."""
    try:
        api.delete(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.code not in (NOT_FOUND, CONFLICT):  # a conflict: its deletion has begun
            raise
