"""Replicas that join, fail and leave in any order, with processes and nodes in memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from verl_omni.trainer.replica_pool import RETRY_MOST_SECONDS, RETRY_SECONDS, ReplicaPool, Room
from verl_omni.trainer.replica_reports import ReplicaReports
from verl_omni.trainer.replica_updates import ReplicaUpdates
from verl_omni.weight_sync.errors import TooFewReplicas


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

    @property
    def server_address(self) -> str:
        return f"host:{self.replica_rank}"

    @property
    def works(self) -> bool:
        return self.alive and self.answers


@dataclass(eq=False)
class Addressed(Replica):
    """A replica with an address of its own."""

    address: str = ""

    @property
    def server_address(self) -> str:
        return self.address


@dataclass
class Memory:
    """Transport, router and launcher in memory; a node has room for one replica."""

    router: dict[str, Replica] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)  # number -> `ready` or `leaving`
    replicas: list[Replica] = field(default_factory=list)
    sent: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    interrupted: set[int] = field(default_factory=set)  # ranks stopped with requests, though process and node were well
    start_fails: bool = False

    def unreachable(self, replicas: Sequence[Replica]) -> dict[int, str]:
        return {each.replica_rank: "no answer" for each in replicas if not each.works}

    def send(self, version: int, replicas: Sequence[Replica]) -> dict[int, str]:
        self.sent.append((version, tuple(each.replica_rank for each in replicas)))
        for each in replicas:
            if each.takes:
                each.version = version
        return {each.replica_rank: "too slow" for each in replicas if not each.takes}

    def versions(self, replicas: Sequence[Replica]) -> tuple[dict[int, int], dict[int, str]]:
        failed = self.unreachable(replicas)
        return {each.replica_rank: each.version for each in replicas if each.replica_rank not in failed}, failed

    def serving(self) -> set[str]:
        return set(self.router)

    def add(self, replicas: Sequence[Replica]) -> None:
        self.router |= {each.server_address: each for each in replicas}

    def remove(self, replicas: Sequence[Replica]) -> None:
        for each in replicas:
            self.router.pop(each.server_address, None)

    def room(self, replicas: Iterable[Replica]) -> Room:
        gone = frozenset(each.replica_rank for each in replicas if each.node not in self.nodes)
        leaving = frozenset(each.replica_rank for each in replicas if self.nodes.get(each.node) == "leaving")
        return Room(sum(state == "ready" for state in self.nodes.values()), gone, leaving)

    def start(self, rank: int) -> Replica:
        used = {each.node for each in self.replicas if not each.stopped}
        free = [node for node, state in self.nodes.items() if state == "ready" and node not in used]
        if self.start_fails or not free:
            raise ConnectionError("no node has room")
        assert rank not in {each.replica_rank for each in self.replicas}, "named actors would collide"
        self.replicas.append(Replica(rank, free[0]))
        return self.replicas[-1]

    def idle(self, replica: Replica) -> bool:
        return not replica.alive or (replica.answers and not replica.requests)

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

    def joined(self, rank: int, version: int) -> None:
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


def pool_of(memory: Memory, count: int, *, least: int = 1, patience: float = 0.0, clock: Any = None) -> ReplicaPool:
    """A pool with `count` nodes, whose replicas have version 0."""
    for number in range(count):
        memory.nodes[number] = "ready"
        memory.replicas.append(Replica(number, number))
    memory.add(memory.replicas)
    updates = ReplicaUpdates(memory, list(memory.replicas), least, patience, Recorded())
    updates.update_weights(0)
    return ReplicaPool(
        updates, memory, count, queue=lambda: sum(each.requests for each in memory.replicas),
        clock=clock or (lambda: 0.0), run=lambda action: action(),
    )  # fmt: skip


class AnyOrder(RuleBasedStateMachine):
    """Nodes, processes, updates and requests in any order."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.memory, self.version, self.now = Memory(), 0, 0.0
        self.pool = pool_of(self.memory, count, clock=lambda: self.now)
        self.updates, self.added = self.pool.updates, count

    def _some(self, draw: int) -> Replica | None:
        found = [each for each in self.memory.replicas if not each.stopped]
        return found[draw % len(found)] if found else None

    @precondition(lambda self: len(self.memory.nodes) < 4)
    @rule()
    def a_node_joins(self) -> None:
        self.memory.nodes[self.added] = "ready"
        self.added += 1

    @rule(draw=st.integers(0, 9))
    def a_node_dies(self, draw: int) -> None:
        if replica := self._some(draw):
            replica.alive = False
            self.memory.nodes.pop(replica.node, None)

    @rule(draw=st.integers(0, 9))
    def a_node_is_being_removed(self, draw: int) -> None:
        if (replica := self._some(draw)) and replica.node in self.memory.nodes:
            self.memory.nodes[replica.node] = "leaving"

    @rule(draw=st.integers(0, 9), what=st.sampled_from(["alive", "answers", "takes"]), value=st.booleans())
    def a_process_changes(self, draw: int, what: str, value: bool) -> None:
        if (replica := self._some(draw)) and (what != "alive" or not value):
            setattr(replica, what, value)

    @rule(fails=st.booleans())
    def starts_fail(self, fails: bool) -> None:
        self.memory.start_fails = fails

    @rule(seconds=st.sampled_from([0.0, RETRY_MOST_SECONDS]))
    def the_pool_looks(self, seconds: float) -> None:
        self.now += seconds
        self.pool.look()

    @rule()
    def weights_are_sent(self) -> None:
        self.version += 1
        reached = [each for each in self.updates.all() if each.works and each.takes]
        try:
            self.updates.update_weights(self.version)
        except TooFewReplicas:
            assert not reached
        assert self.updates.replicas == reached
        assert self.updates.versions_by_host() == ({"host": self.version} if reached else {})
        assert set(self.updates.versions()) <= {self.version}

    @rule(draw=st.integers(0, 9))
    def a_request_is_sent(self, draw: int) -> None:
        """As the client does: a replica that is lost leaves the router."""
        if not (serving := list(self.memory.router.values())):
            return
        replica = serving[draw % len(serving)]
        if not replica.works:
            self.memory.remove([replica])
        else:
            assert replica.version == self.version
            replica.requests += 1

    @rule(draw=st.integers(0, 9))
    def a_sample_is_finished(self, draw: int) -> None:
        if (replica := self._some(draw)) and replica.works and replica.requests:
            replica.requests -= 1

    @rule(looks=st.integers(1, 2))
    def a_batch_is_generated(self, looks: int) -> None:
        with self.updates.generating(self.version):
            for _ in range(looks):
                self.pool.look()
            assert {each.server_address for each in self.updates.replicas} == self.memory.serving()

    @invariant()
    def what_serves_has_the_current_version(self) -> None:
        if hasattr(self, "memory"):
            assert {each.version for each in self.memory.router.values()} <= {self.version}
            assert all(each in self.updates.replicas for each in self.memory.router.values())

    @invariant()
    def a_replica_that_leaves_finishes_its_samples(self) -> None:
        if hasattr(self, "memory"):
            reports: Any = self.updates.reports
            assert not self.memory.interrupted & reports.left

    def teardown(self) -> None:
        """When nothing happens any more, each node has a replica that serves, and no process is left over."""
        if not hasattr(self, "memory"):
            return
        self.memory.start_fails = False
        self.memory.nodes = {node: state for node, state in self.memory.nodes.items() if state == "ready"}
        self.memory.nodes.setdefault(99, "ready")
        for replica in self.memory.replicas:
            replica.answers = replica.takes = True
        for _ in range(3):
            self.the_pool_looks(RETRY_MOST_SECONDS)
            self.weights_are_sent()
        self.pool.look()
        assert sorted(each.node for each in self.updates.replicas) == sorted(self.memory.nodes)
        assert self.memory.router == {each.server_address: each for each in self.updates.replicas}
        others = [each for each in self.memory.replicas if each not in self.updates.replicas]
        assert all(each.stopped == 1 for each in others)


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_lost_replica_is_replaced_and_the_new_one_serves_with_the_next_version() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    del memory.nodes[1]
    memory.replicas[1].alive = False
    pool.look()
    memory.nodes[2] = "ready"
    pool.look()
    assert set(memory.router) == {"host:0"}, "a new replica has no weights"
    pool.updates.update_weights(1)
    assert set(memory.router) == {"host:0", "host:2"}
    assert memory.sent == [(0, (0, 1)), (1, (0, 2))]
    reports: Any = pool.updates.reports
    assert reports.lines == ["replica 1 serves no more: its node is gone", "joined 2 at 1"]


def test_each_look_reports_the_version_of_the_replicas_that_serve_by_host() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    reports: Any = pool.updates.reports
    pool.look()
    assert reports.found == {"host": 0}
    pool.updates.update_weights(4)
    memory.nodes = {1: "leaving"}
    pool.look()
    assert reports.found == {}, "a replica that is gone, or leaves, serves no more"
    memory.nodes[2] = "ready"
    pool.look()
    pool.look()
    assert reports.found == {}, "a replica that has started has no weights"
    pool.updates.update_weights(5)
    pool.look()
    assert reports.found == {"host": 5}


def test_the_replicas_of_a_host_have_the_lowest_of_their_versions() -> None:
    memory = Memory()
    updates = pool_of(memory, 3).updates
    addresses = ["10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.1:8001"]
    updates.replicas = [Addressed(rank, rank, address=address) for rank, address in enumerate(addresses)]
    updates._held = {0: 7, 1: 6, 2: 5}
    assert updates.versions_by_host() == {"10.0.0.1": 5, "fd00::1": 6}
    del updates._held[1]
    assert updates.versions_by_host() == {"10.0.0.1": 5}


def test_a_replica_joins_in_the_middle_of_a_generation_when_no_weights_change() -> None:
    memory = Memory()
    pool = pool_of(memory, 1)
    del memory.nodes[0]
    memory.nodes[1] = "ready"
    pool.look()
    pool.look()
    assert memory.router == {}
    with pool.updates.generating(0):
        pool.look()
    assert set(memory.router) == {"host:1"}
    assert memory.sent == [(0, (0,)), (0, (1,))]


def test_a_replica_on_a_node_that_is_being_removed_finishes_its_samples_and_is_stopped() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    memory.nodes[1], memory.replicas[1].requests = "leaving", 1
    for _ in range(3):
        pool.look()
        assert (set(memory.router), memory.replicas[1].alive) == ({"host:0"}, True), "it finishes what it has"
    memory.replicas[1].requests = 0
    pool.look()
    assert [each.stopped for each in memory.replicas] == [0, 1]
    reports: Any = pool.updates.reports
    assert reports.lines == ["leaving 1", "drained 1"]


def test_each_look_reports_how_many_samples_wait() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    found: list[int] = []
    reports: Any = pool.updates.reports
    reports.queued = found.append
    for requests in (0, 3, 1):
        memory.replicas[0].requests = requests
        pool.look()
    assert found == [0, 3, 1]


def test_a_node_that_ends_before_its_replica_has_finished_takes_the_samples_with_it() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    memory.nodes[1], memory.replicas[1].requests = "leaving", 1
    pool.look()
    del memory.nodes[1]
    pool.look()
    assert [each.stopped for each in memory.replicas] == [0, 1]
    reports: Any = pool.updates.reports
    assert reports.lines == ["leaving 1"], "no longer drained"


def test_a_request_that_was_on_its_way_when_a_replica_left_is_not_cut_off() -> None:
    memory = Memory()
    pool = pool_of(memory, 1)
    memory.nodes[0] = "leaving"
    pool.look()
    assert memory.replicas[0].alive, "the request may arrive after the router has forgotten the replica"


def test_an_update_waits_for_the_replicas_that_the_run_needs() -> None:
    memory = Memory()
    pool = pool_of(memory, 2, least=2, patience=60.0)
    memory.replicas[1].takes = False
    late = Replica(2, 2)
    done = threading.Thread(target=lambda: pool.updates.update_weights(1))
    waits, reports = threading.Event(), pool.updates.reports
    reports.waiting = lambda serving, least: waits.set()  # type: ignore[method-assign]
    done.start()
    assert waits.wait(30)
    pool.updates.join(late)
    done.join(30)
    assert not done.is_alive()
    assert memory.sent == [(0, (0, 1)), (1, (0, 1)), (1, (2,))], "those that have the weights get them once"
    assert set(memory.router) == {"host:0", "host:2"}


def test_a_run_ends_with_the_reasons_when_no_replica_joins_in_time() -> None:
    pool = pool_of(memory := Memory(), 2, least=2)
    memory.replicas[1].alive = False
    with pytest.raises(TooFewReplicas) as caught:
        pool.updates.update_weights(1)
    assert str(caught.value) == (
        "[TooFewReplicas] 1 rollout replicas are left, rollout.min_replicas is 2, and no other one joined within 0 s "
        "(rollout.deadline_seconds): replica 1 serves no more: version 1 did not reach it: no answer"
    )
    assert set(memory.router) == {"host:0"}, "it must not serve in any case"


def test_a_replica_that_does_not_start_is_tried_again_after_longer_and_longer_pauses() -> None:
    memory, now = Memory(start_fails=True), [0.0]
    pool = pool_of(memory, 1, clock=lambda: now[0])
    memory.nodes[1] = "ready"
    reports: Any = pool.updates.reports
    tried = []
    for _ in range(100):
        before = len(reports.lines)
        pool.look()
        if len(reports.lines) > before:
            tried.append(now[0])
        now[0] += RETRY_SECONDS
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == sorted(pauses) and pauses[0] == RETRY_SECONDS and max(pauses) == RETRY_MOST_SECONDS
    assert reports.lines[0] == "replica 1 did not start, next try in 10 s: ConnectionError: no node has room"
    memory.start_fails, now[0] = False, 1e4
    pool.look()
    assert [each.replica_rank for each in pool.updates.all()] == [0, len(tried) + 1]


def test_a_pool_that_is_stopped_starts_nothing_and_names_all_that_runs() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    memory.nodes[2] = "ready"
    assert pool.stop() == memory.replicas
    pool.look()
    assert len(memory.replicas) == 2
