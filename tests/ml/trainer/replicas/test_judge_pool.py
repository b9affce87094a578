"""Replicas of a judge that join, fail and leave, with processes, nodes and router in memory."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from omegaconf import DictConfig

from tests.ml import smallest_job
from tests.ml.trainer.replicas.replicas_in_memory import Nodes, Replica
from verl_omni.trainer.replicas.replica_pool import ReplicaPool
from verl_omni.trainer.replicas.replica_reports import JudgeReports
from verl_omni.trainer.rewards.judge_members import JudgeMembers
from verl_omni.trainer.settings import judge_settings
from verl_omni.utils.metrics.metrics_writer import MetricsWriter

RM = "reward.reward_model"


@dataclass
class Memory(Nodes):
    """Router, launcher and nodes in memory."""

    refused: dict[str, str] = field(default_factory=dict)
    peaks: list[int] = field(default_factory=list)  # one for each look

    def add(self, address: str) -> None:
        self.router[address] = next(replica for replica in self.replicas if replica.server_address == address)
        self.refused.pop(address, None)

    def remove(self, address: str, reason: str) -> None:
        if self.router.pop(address, None) is not None:
            self.refused[address] = reason

    def failed(self) -> dict[str, str]:
        return dict(self.refused)

    def peak(self) -> int:
        return self.peaks.pop(0) if self.peaks else 0

    def dead(self, replicas: list[Replica]) -> dict[int, str]:
        return {replica.replica_rank: "it ended" for replica in replicas if not replica.alive}

    def idle(self, replica: Replica) -> bool:
        return not replica.requests


@dataclass
class Folder:
    """A run folder that keeps its events."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def warnings(self, reason: str) -> list[str]:
        return [event["message"] for kind, event in self.events if kind == "warning" and event["reason"] == reason]


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
    (message,) = folder.warnings("ReplicaNotStarted")
    assert message.startswith("judge replica 3 did not start, next try in 10 s")
    assert [replica.stopped for replica in memory.replicas] == [1, 1, 0]


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
    assert [replica.stopped for replica in memory.replicas] == [0, 1] and list(memory.router) == ["host:0"]
    (message,) = folder.warnings("ReplicaNotStarted")
    assert message.startswith("judge replica 1 did not start, next try in 10 s: ") and message.endswith(fault)
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
    noted: list[tuple[str, Any]] = []
    pool.updates.reports = JudgeReports(folder, MetricsWriter(), lambda name, value: noted.append((name, value)))
    pool.look()
    memory.hosts["host"] = 3
    pool.look()
    memory.hosts["host"] = 2
    memory.replicas[0].alive = memory.replicas[1].alive = False
    pool.look()
    assert noted == [
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
