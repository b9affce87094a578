"""Replicas of a judge that join, fail and leave in any order, with processes, nodes and router in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from omegaconf import DictConfig

from tests.ml import smallest_job
from tests.ml.trainer.replicas.replicas_in_memory import Nodes, NodesInAnyOrder
from verl_omni.trainer.replicas.replica_pool import RETRY_MOST_SECONDS, ReplicaPool
from verl_omni.trainer.replicas.replica_reports import JudgeReports
from verl_omni.trainer.rewards.judge_members import JudgeMembers
from verl_omni.trainer.settings import judge_settings
from verl_omni.utils.metrics.metrics_writer import MetricsWriter

RM = "reward.reward_model"


@dataclass(eq=False)
class Replica:
    """A judge's replica in memory; its process may end, and its server may refuse connections."""

    replica_rank: int
    node: int
    alive: bool = True
    refuses: bool = False
    requests: int = 0
    stopped: int = 0

    @property
    def works(self) -> bool:
        return self.alive and not self.refuses

    @property
    def server_address(self) -> str:
        return f"host:{self.replica_rank}"


@dataclass
class Memory(Nodes[Replica]):
    """Router, launcher and nodes in memory."""

    make: Callable[[int, int], Replica] = Replica
    refused: dict[str, str] = field(default_factory=dict)
    peaks: list[int] = field(default_factory=list)  # one for each look

    def add(self, address: str) -> None:
        self.router[address] = next(each for each in self.replicas if each.server_address == address)
        self.refused.pop(address, None)

    def remove(self, address: str, reason: str) -> None:
        if self.router.pop(address, None) is not None:
            self.refused[address] = reason

    def failed(self) -> dict[str, str]:
        return dict(self.refused)

    def peak(self) -> int:
        return self.peaks.pop(0) if self.peaks else 0

    def dead(self, replicas: list[Replica]) -> dict[int, str]:
        return {each.replica_rank: "it ended" for each in replicas if not each.alive}

    def idle(self, replica: Replica) -> bool:
        return not replica.alive or not replica.requests


@dataclass
class Folder:
    """A run folder that keeps its events."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def warnings(self, reason: str) -> list[str]:
        return [each["message"] for kind, each in self.events if kind == "warning" and each["reason"] == reason]


def pool_of(memory: Memory, count: int, clock: Any = lambda: 0.0) -> tuple[ReplicaPool[JudgeMembers], Folder]:
    """A pool with `count` nodes, whose replicas serve."""
    for number in range(count):
        memory.nodes[number] = "ready"
        memory.replicas.append(Replica(number, number))
        memory.add(memory.replicas[-1].server_address)
    folder = Folder()
    members = JudgeMembers(memory, list(memory.replicas), JudgeReports(folder, MetricsWriter()))
    pool = ReplicaPool(
        members, memory, count, looked=members.looked, noun="judge replica", clock=clock, run=lambda action: action()
    )
    return pool, folder


class AnyOrder(NodesInAnyOrder):
    """Nodes, processes and questions in any order."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.memory = Memory()
        self.now = 0.0
        self.added = count
        self.pool, _ = pool_of(self.memory, count, lambda: self.now)
        self.left: set[int] = set()

    def removed(self, replica: Replica) -> None:
        self.left.add(replica.replica_rank)

    @rule(draw=st.integers(0, 9), what=st.sampled_from(["ends", "refuses"]))
    def a_process_changes(self, draw: int, what: str) -> None:
        if replica := self.some(draw):
            replica.alive = replica.alive and what != "ends"
            replica.refuses = replica.refuses or what == "refuses"

    @rule(seconds=st.sampled_from([0.0, RETRY_MOST_SECONDS]))
    def the_pool_looks(self, seconds: float) -> None:
        self.now += seconds
        self.pool.look()
        assert {each.server_address for each in self.pool.updates.all()} == set(self.memory.router)

    @rule(draw=st.integers(0, 9))
    def a_question_is_sent(self, draw: int) -> None:
        """As the router does: a replica that refuses a connection gets no more."""
        if not (serving := list(self.memory.router.values())):
            return
        replica = serving[draw % len(serving)]
        assert not replica.stopped
        if replica.works:
            replica.requests += 1
        else:
            self.memory.remove(replica.server_address, "refused")

    @rule(draw=st.integers(0, 9))
    def a_question_is_answered(self, draw: int) -> None:
        if (replica := self.some(draw)) and replica.alive and replica.requests:
            replica.requests -= 1

    @invariant()
    def a_replica_that_leaves_answers_its_questions(self) -> None:
        if hasattr(self, "memory"):
            assert not self.memory.interrupted & self.left

    def teardown(self) -> None:
        """When nothing happens any more, each node has a replica that serves, and no process is left over."""
        if not hasattr(self, "memory"):
            return
        self.memory.start_fails = False
        for each in self.memory.replicas:
            each.requests = 0
            if each.refuses:  # the next question finds that out
                self.memory.remove(each.server_address, "refused")
        for _ in range(6):
            self.now += RETRY_MOST_SECONDS
            self.pool.look()
        ready = {node for node, state in self.memory.nodes.items() if state == "ready"}
        assert {each.node for each in self.memory.router.values()} == ready == set(self.memory.nodes)
        running = [each for each in self.memory.replicas if not each.stopped]
        assert len(running) == len(ready) and all(each.alive for each in running)
        assert all(each.stopped <= 1 for each in self.memory.replicas)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis_settings(deadline=None, max_examples=60, stateful_step_count=25)


def test_a_lost_replica_is_replaced_and_both_are_reported() -> None:
    memory = Memory()
    pool, folder = pool_of(memory, 2)
    memory.replicas[1].alive = False
    pool.look()  # finds that it has ended
    assert list(memory.router) == ["host:0"]
    pool.look()  # stops what is left of it, and starts another one
    assert list(memory.router) == ["host:0", "host:2"] and memory.replicas[1].stopped == 1
    assert folder.warnings("ReplicaRemoved") == ["judge replica 1 serves no more: it ended"]
    text = "judge replica 2 joined: 4.0 s for a place, 20.0 s to start"
    assert ("phase", {"text": text, "place_s": 4.0, "start_s": 20.0}) in folder.events
    memory.remove("host:0", "TimeoutError: no connection")
    memory.start_fails = True
    pool.look()
    pool.look()
    assert folder.warnings("ReplicaRemoved")[1:] == ["judge replica 0 serves no more: TimeoutError: no connection"]
    (said,) = folder.warnings("ReplicaNotStarted")
    assert said.startswith("judge replica 3 did not start, next try in 10 s")


@pytest.mark.parametrize("fault", ["the router is silent", "the disk is full"])
def test_a_replica_that_cannot_join_is_stopped_and_another_one_started(fault: str) -> None:
    memory = Memory()
    now = 0.0
    pool, folder = pool_of(memory, 1, lambda: now)
    add = memory.add
    event = folder.event
    memory.nodes[1] = "ready"

    def fails(*arguments: Any, **fields: Any) -> None:
        if fault == "the router is silent":
            raise TimeoutError(fault)
        if arguments[0] == "phase":
            raise OSError(fault)
        event(*arguments, **fields)

    memory.add, folder.event = (fails, event) if "router" in fault else (add, fails)  # type: ignore[method-assign]
    for _ in range(3):
        pool.look()
    assert [each.stopped for each in memory.replicas] == [0, 1] and list(memory.router) == ["host:0"]
    (said,) = folder.warnings("ReplicaNotStarted")
    assert said.startswith("judge replica 1 did not start, next try in 10 s: ") and said.endswith(fault)
    memory.add, folder.event, now = add, event, 10.0  # type: ignore[method-assign]
    pool.look()
    assert list(memory.router) == ["host:0", "host:2"]


def test_a_node_that_is_being_removed_keeps_its_replica_until_the_questions_are_answered() -> None:
    memory = Memory()
    pool, folder = pool_of(memory, 2)
    memory.replicas[1].requests = 1
    memory.nodes[1] = "leaving"
    pool.look()
    pool.look()
    assert list(memory.router) == ["host:0"] and not memory.replicas[1].stopped
    memory.replicas[1].requests = 0
    pool.look()
    assert memory.replicas[1].stopped == 1 and len(memory.replicas) == 2
    texts = [fields["text"] for kind, fields in folder.events if kind == "phase"]
    assert texts == [
        "judge replica 1 gets no more questions: its node is being removed",
        "judge replica 1 has answered its questions, and is stopped",
    ]


def test_each_look_reports_the_hosts_whose_judges_serve_and_how_many_requests_waited() -> None:
    memory = Memory(peaks=[7, 4, 2])
    pool, folder = pool_of(memory, 2)
    found: list[tuple[str, Any]] = []
    pool.updates.reports = JudgeReports(folder, MetricsWriter(), lambda name, value: found.append((name, value)))
    pool.look()
    memory.hosts["host"] = 3
    pool.look()
    memory.hosts["host"] = 2
    memory.replicas[0].alive = memory.replicas[1].alive = False
    pool.look()
    assert found == [
        ("reward/replica_versions", {"host": 0}),
        ("reward/queued_requests", 7),
        ("reward/replica_versions", {}),
        ("reward/queued_requests", 4),
        ("reward/replica_versions", {}),
        ("reward/queued_requests", 2),
    ]


def loaded(*overrides: str) -> DictConfig:
    return smallest_job.load("reward.scorer=genrm_ocr", f"{RM}.enable=true", f"{RM}.model_path=judge", *overrides)


@pytest.mark.parametrize(
    ("overrides", "elastic"),
    [
        ((f"{RM}.rollout.tensor_model_parallel_size=1",), False),  # on the trainer's accelerators
        ((f"{RM}.enable_resource_pool=true", f"{RM}.nnodes=2", f"{RM}.n_gpus_per_node=2"), True),
        ((f"{RM}.enable_resource_pool=true", f"{RM}.nnodes=2", f"{RM}.n_gpus_per_node=1"), False),  # one on two nodes
    ],
)
def test_a_judge_is_elastic_if_its_replicas_have_nodes_of_their_own(overrides: tuple[str, ...], elastic: bool) -> None:
    assert judge_settings.elastic(loaded(*overrides)) is elastic


def test_there_is_room_on_every_node_with_the_resource_or_for_the_replicas_of_the_settings() -> None:
    pool = (f"{RM}.enable_resource_pool=true", f"{RM}.nnodes=2", f"{RM}.n_gpus_per_node=4")
    nodes = [{"GPU": 4.0, "judges": 1.0}, {"GPU": 3.0, "judges": 1.0}, {"GPU": 8.0}, {"judges": 1.0}]
    assert judge_settings.room(loaded(*pool), nodes, "GPU") == 4
    assert judge_settings.room(loaded(*pool, f"{RM}.node_resource=judges"), nodes, "GPU") == 3
    with_resource = loaded(*pool, f"{RM}.node_resource=judges", f"{RM}.ray_resource=NPU")
    assert judge_settings.room(with_resource, [*nodes, {"judges": 1.0, "NPU": 4.0}], "GPU") == 2
