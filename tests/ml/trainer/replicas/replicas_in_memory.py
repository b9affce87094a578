"""Replicas, their processes and their nodes in memory, and a pool of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_omni.trainer.replicas.replica_launcher import Room
from verl_omni.trainer.replicas.replica_pool import ReplicaPool
from verl_omni.trainer.replicas.replica_reports import JoinTimes, ReplicaReports
from verl_omni.trainer.replicas.replica_updates import ReplicaUpdates


@dataclass(eq=False)
class Replica:
    """A replica in memory.

    Attributes:
        answers: false for one that is stopped or unreachable.
        takes: false for one whose engine refuses weights, or is too slow for the deadline.
        requests: samples that it is generating.
    """

    replica_rank: int
    node: int
    version: int = -1
    alive: bool = True
    answers: bool = True
    takes: bool = True
    requests: int = 0
    stopped: int = 0
    address: str | None = None

    @property
    def server_address(self) -> str:
        return self.address or f"host:{self.replica_rank}"

    @property
    def works(self) -> bool:
        return self.alive and self.answers


@dataclass
class Nodes:
    """Nodes in memory, each with room for one replica, and what the pool has started there.

    Attributes:
        make: a replica of a rank on a node.
        nodes: number -> `ready` or `leaving`.
        hosts: replicas that each has room for, by its address.
        interrupted: ranks stopped with requests, though process and node were well.
    """

    make: Callable[[int, int], Replica] = Replica
    router: dict[str, Replica] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    interrupted: set[int] = field(default_factory=set)
    start_fails: bool = False
    hosts: dict[str, int] = field(default_factory=dict)

    def room(self, replicas: Iterable[Replica]) -> Room:
        known = list(replicas)
        gone = frozenset(replica.replica_rank for replica in known if replica.node not in self.nodes)
        leaving = frozenset(replica.replica_rank for replica in known if self.nodes.get(replica.node) == "leaving")
        return Room(sum(state == "ready" for state in self.nodes.values()), gone, leaving, self.hosts)

    def start(self, rank: int) -> tuple[Replica, JoinTimes]:
        used = {replica.node for replica in self.replicas if not replica.stopped}
        free = [node for node, state in self.nodes.items() if state == "ready" and node not in used]
        if self.start_fails or not free:
            raise ConnectionError("no node has room")
        assert rank not in {replica.replica_rank for replica in self.replicas}, "named actors would collide"
        self.replicas.append(self.make(rank, free[0]))
        return self.replicas[-1], JoinTimes(4.0, 20.0)

    def give_up(self) -> None:
        """Every start has ended when this is called, because it runs in the thread of the pool."""

    def stop(self, replica: Replica) -> None:
        if replica.requests and replica.works and replica.node in self.nodes:
            self.interrupted.add(replica.replica_rank)
        if self.nodes.get(replica.node) == "leaving":
            del self.nodes[replica.node]  # Ray ends a node that is being drained once nothing runs on it
        replica.stopped += 1
        replica.alive = False


class Recorded(ReplicaReports):
    """Reports, as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.found: dict[str, int] = {}
        self.left: set[int] = set()

    def joined(self, rank: int, version: int, times: JoinTimes) -> None:
        self.lines.append(f"joined {rank} at {version}")

    def leaving(self, rank: int) -> None:
        self.left.add(rank)
        self.lines.append(f"leaving {rank}")

    def drained(self, rank: int) -> None:
        self.lines.append(f"drained {rank}")

    def lost(self, message: str) -> None:
        self.lines.append(message)

    def start_failed(self, message: str) -> None:
        self.lines.append(message)

    def waiting(self, serving: int, least: int) -> None:
        self.lines.append(f"waiting {serving}/{least}")

    def versions(self, found: Mapping[str, int]) -> None:
        self.found = dict(found)


@dataclass
class Memory(Nodes):
    """Transport, router and launcher in memory.

    Attributes:
        now: seconds of the clock.
        reports: what the pool reports.
    """

    now: float = 0.0
    reports: Any = field(default_factory=Recorded)
    sent: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def unreachable(self, replicas: Sequence[Replica]) -> dict[int, str]:
        return {replica.replica_rank: "no answer" for replica in replicas if not replica.works}

    def send(self, version: int, replicas: Sequence[Replica]) -> dict[int, str]:
        self.sent.append((version, tuple(replica.replica_rank for replica in replicas)))
        for replica in replicas:
            if replica.takes:
                replica.version = version
        return {replica.replica_rank: "too slow" for replica in replicas if not replica.takes}

    def versions(self, replicas: Sequence[Replica]) -> tuple[dict[int, int], dict[int, str]]:
        failed = self.unreachable(replicas)
        return {
            replica.replica_rank: replica.version for replica in replicas if replica.replica_rank not in failed
        }, failed

    def serving(self) -> set[str]:
        return set(self.router)

    def add(self, replicas: Sequence[Replica]) -> None:
        self.router |= {replica.server_address: replica for replica in replicas}

    def remove(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            self.router.pop(replica.server_address, None)

    def idle(self, replica: Replica) -> bool:
        return not replica.alive or (replica.answers and not replica.requests)


def pool_of(memory: Memory, count: int, *, least: int = 1, patience: float = 0.0) -> ReplicaPool[ReplicaUpdates]:
    """A pool with `count` nodes, whose replicas have version 0."""
    for number in range(count):
        memory.nodes[number] = "ready"
        memory.replicas.append(Replica(number, number))
    memory.add(memory.replicas)
    updates = ReplicaUpdates(memory, list(memory.replicas), least, patience, memory.reports, clock=lambda: memory.now)
    updates.update_weights(0)
    return ReplicaPool(
        updates,
        memory,
        count,
        looked=lambda hosts: updates.looked(sum(replica.requests for replica in memory.replicas), hosts),
        clock=lambda: memory.now,
        run=lambda action: action(),
    )
