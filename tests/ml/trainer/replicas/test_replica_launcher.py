"""Where standalone replicas can be started, and what becomes of one that does not start or does not answer."""

import asyncio
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from verl_omni.trainer.replicas import replica_launcher


def set_nodes(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, Any]], draining: str = "", **ray: Any) -> None:
    """Let Ray have these nodes, one of which it drains."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: nodes, **ray))
    monkeypatch.setattr(replica_launcher, "draining_nodes", lambda: {draining})


def replica_on(rank: int, node: str | None) -> Any:
    """A replica whose worker answers the id of its node."""
    worker = SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda ask: node))
    return SimpleNamespace(replica_rank=rank, stop=lambda: None, workers=[worker])


@pytest.mark.parametrize(("pinned", "hosts"), [(True, {"10.0.0.7": 3, "10.0.0.8": 1, "10.0.0.9": 0}), (False, {})])
def test_the_room_of_each_host_is_known_where_the_pool_is_pinned(
    pinned: bool, hosts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerators = [("10.0.0.7", 4.0), ("10.0.0.7", 2.0), ("10.0.0.8", 3.0), ("10.0.0.9", 1.0), ("10.0.0.10", 4.0)]
    nodes = [
        {"NodeID": str(number), "Alive": True, "NodeManagerAddress": address, "Resources": {"GPU": count}}
        for number, (address, count) in enumerate(accelerators)
    ]
    set_nodes(monkeypatch, nodes, draining="4")
    launcher = replica_launcher.RayLauncher(
        lambda rank: None, lambda alive: sum(int(node["GPU"]) // 2 for node in alive), lambda replica: [], 1.0, pinned
    )
    assert (launcher.room([]).replicas, launcher.room([]).hosts) == (4, hosts)


def test_a_killed_node_has_no_room_for_another_replica_while_ray_takes_it_for_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = {}
    with socket.create_server(("127.0.0.1", 0)) as living, socket.create_server(("127.0.0.1", 0)) as killed:
        ports = {"living": living.getsockname()[1], "killed": killed.getsockname()[1]}
        nodes = [
            {"NodeID": name, "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port, "Resources": {}}
            for name, port in ports.items()
        ]
        set_nodes(monkeypatch, nodes, get=lambda asked, timeout: asked)
        launcher = replica_launcher.RayLauncher(lambda rank: None, len, lambda replica: [], 1.0, pinned=True)
        replicas = [replica_on(rank, node) for rank, node in enumerate(ports)]
        assert launcher.room(replicas).replicas == 2
        killed.close()
        # The router has lost both: one by the end of its process, whose node is well, one with its node.
        assert launcher.room([]).replicas == 1
        for replica in replicas:
            launcher.stop(replica)
        assert launcher.room([]).replicas == 1
        nodes[1]["NodeManagerPort"] = ports["living"]  # it was cut off for a while
        assert launcher.room([]).replicas == 2
        nodes[1] |= {"Alive": False, "NodeManagerPort": 0}
        assert launcher.room([]).replicas == 1


def test_a_look_does_not_wait_long_for_a_replica_that_says_not_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is stopped, before the pool has asked for its node; the other replicas go on."""
    import ray

    waited: list[float] = []

    def get(asked: Any, timeout: float) -> Any:
        if asked is None:
            waited.append(timeout)
            raise ray.exceptions.GetTimeoutError
        return asked

    nodes = [{"NodeID": "a", "Alive": True, "NodeManagerAddress": "127.0.0.1", "Resources": {}}]
    set_nodes(monkeypatch, nodes, get=get, exceptions=ray.exceptions)
    launcher = replica_launcher.RayLauncher(lambda rank: None, len, lambda replica: [], 1800.0)
    stopped, gone = (replica_on(rank, node) for rank, node in enumerate([None, "b"]))
    assert launcher.room([stopped, gone]).gone == {1}, "one that does not answer may be well again soon"
    assert waited == [replica_launcher.ANSWER_SECONDS]


def test_a_replica_that_does_not_start_in_time_says_so() -> None:
    stops: list[int] = []

    def make(rank: int) -> Any:
        return SimpleNamespace(
            replica_rank=rank, place=lambda: None, stop=lambda: stops.append(rank), launch_servers=asyncio.Event().wait
        )

    with pytest.raises(TimeoutError, match=r"its engine was not ready within 0\.01 s"):
        replica_launcher.RayLauncher(make, len, lambda replica: [], 0.01).start(3)
    assert stops == [3]
