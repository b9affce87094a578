"""Replicas that join, fail and leave: the cases by name, with processes and nodes in memory."""

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.ml.trainer.recorded_runs import events
from tests.ml.trainer.replicas.replicas_in_memory import Memory, Replica, pool_of
from verl_omni.trainer.replicas.replica_pool import RETRY_MOST_SECONDS, RETRY_SECONDS
from verl_omni.trainer.replicas.replica_reports import JoinTimes, JudgeReports, RunReports, versions_of_hosts
from verl_omni.trainer.run.run_folder import RunFolder
from verl_omni.utils.metrics.metrics_writer import MetricsWriter
from verl_omni.weight_sync.errors import TooFewReplicas


def test_the_run_folder_has_the_times_of_a_replica_that_joined(tmp_path: Path) -> None:
    RunReports(RunFolder(tmp_path), MetricsWriter()).joined(3, 5, JoinTimes(2.0, 21.04, 4.5))
    JudgeReports(RunFolder(tmp_path), MetricsWriter()).joined(2, 0, JoinTimes(0.25, 7.0))
    text = "replica 3 joined with version 5: 2.0 s for a place, 21.0 s to start, 4.5 s for the weights"
    assert events(tmp_path) == [
        {"event": "phase", "text": text, "place_s": 2.0, "start_s": 21.04, "sync_s": 4.5},
        {
            "event": "phase",
            "text": "judge replica 2 joined: 0.2 s for a place, 7.0 s to start",
            "place_s": 0.25,
            "start_s": 7.0,
        },
    ]


def test_each_look_reports_the_version_of_the_replicas_that_serve_by_host() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    pool.look()
    assert memory.reports.found == {"host": 0}
    pool.updates.update_weights(4)
    memory.nodes = {1: "leaving"}
    pool.look()
    assert memory.reports.found == {}, "a replica that is gone, or leaves, serves no more"
    memory.nodes[2] = "ready"
    pool.look()
    pool.look()
    assert memory.reports.found == {}, "a replica that has started has no weights"
    pool.updates.update_weights(5)
    pool.look()
    assert memory.reports.found == {"host": 5}


def test_the_replicas_of_a_host_have_the_lowest_of_their_versions() -> None:
    held = [("10.0.0.1:8000", 7), ("[fd00::1]:8000", 6), ("10.0.0.1:8001", 5)]
    assert versions_of_hosts(held, {}) == {"10.0.0.1": 5, "fd00::1": 6}


def test_a_host_serves_when_all_its_replicas_do() -> None:
    """A rolling update would replace the next pod while the second engine of this one loads, or never starts."""
    memory = Memory(hosts={"10.0.0.7": 2, "10.0.0.8": 0})
    pool = pool_of(memory, 1)
    first, second = (Replica(rank, 0, address=f"10.0.0.7:800{rank}") for rank in (1, 2))
    for version, joins, counts in [(1, first, {"host": 1}), (2, second, {"host": 2, "10.0.0.7": 2})]:
        pool.updates.join(joins, JoinTimes(1.0, 1.0))
        pool.updates.update_weights(version)
        pool.look()
        assert memory.reports.found == counts
    pool.updates.lose(second, "it ended")
    pool.look()
    assert memory.reports.found == {"host": 2}


def test_a_replica_on_a_node_that_is_being_removed_finishes_its_samples_and_is_stopped() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    memory.nodes[1] = "leaving"
    memory.replicas[1].requests = 1
    for _ in range(3):
        pool.look()
        assert (set(memory.router), memory.replicas[1].alive) == ({"host:0"}, True), "it finishes what it has"
    memory.replicas[1].requests = 0
    pool.look()
    assert [replica.stopped for replica in memory.replicas] == [0, 1]
    assert memory.reports.lines == ["leaving 1", "drained 1"]


def test_each_look_reports_how_many_samples_wait() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    queue_lengths: list[int] = []
    memory.reports.queued = queue_lengths.append
    for requests in (0, 3, 1):
        memory.replicas[0].requests = requests
        pool.look()
    assert queue_lengths == [0, 3, 1]


def test_an_update_waits_for_the_replicas_that_the_run_needs() -> None:
    memory = Memory()
    pool = pool_of(memory, 2, least=2, patience=60.0)
    memory.replicas[1].takes = False
    late = Replica(2, 2)
    done = threading.Thread(target=lambda: pool.updates.update_weights(1))
    waits = threading.Event()
    memory.reports.waiting = lambda serving, least: waits.set()
    done.start()
    assert waits.wait(30)
    pool.updates.join(late, JoinTimes(0.0, 0.0))
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
        "[TooFewReplicas] 1 rollout replicas are left, rollout.min_replicas is 2, and not enough others joined within "
        "0 s (rollout.deadline_seconds): replica 1 serves no more: version 1 did not reach it: no answer"
    )
    assert set(memory.router) == {"host:0"}, "it must not serve in any case"


def test_an_update_ends_in_time_when_each_new_replica_starts_and_fails_it() -> None:
    memory = Memory()
    updates = pool_of(memory, 1, patience=60.0).updates
    memory.replicas[0].takes = False
    send = memory.send
    late = iter(range(1, 100))

    def send_and_join_another(version: int, replicas: Any) -> dict[int, str]:
        memory.now += 25.0
        updates.join(Replica(rank := next(late), rank, takes=False), JoinTimes(0.0, 0.0))
        return send(version, replicas)

    memory.send = send_and_join_another  # type: ignore[method-assign]
    with pytest.raises(TooFewReplicas, match=r"not enough others joined within 60 s .*replica 3 serves no more"):
        updates.update_weights(1)
    assert [ranks for _, ranks in memory.sent[1:]] == [(0,), (1,), (2,), (3,)]


def test_a_replica_that_starts_and_fails_its_first_update_is_one_that_did_not_start() -> None:
    memory = Memory()
    pool = pool_of(memory, 1)
    memory.nodes[1] = "ready"
    memory.make = lambda rank, node: Replica(rank, node, takes=False)
    tried = []
    for version in range(1, 40):
        before = len(memory.replicas)
        pool.look()
        if len(memory.replicas) > before:
            tried.append(memory.now)
        pool.updates.update_weights(version)
        memory.now += RETRY_SECONDS
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses[:4] == [20.0, 30.0, 50.0, 90.0], "the pause begins with the next look"
    assert "replica 1 started, and was lost before it served, next try in 10 s" in memory.reports.lines
    memory.make = Replica
    memory.now = 1e4
    pool.look()
    pool.updates.update_weights(40)
    pool.look()
    del memory.nodes[1]
    memory.nodes[2] = "ready"
    for _ in range(2):
        pool.look()
    assert len(pool.updates.all()) == 2, "after a replica that served, the next one starts at once"


def test_a_replica_that_does_not_start_is_tried_again_after_longer_and_longer_pauses() -> None:
    memory = Memory(start_fails=True)
    pool = pool_of(memory, 1)
    memory.nodes[1] = "ready"
    tried = []
    for _ in range(100):
        before = len(memory.reports.lines)
        pool.look()
        if len(memory.reports.lines) > before:
            tried.append(memory.now)
        memory.now += RETRY_SECONDS
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == sorted(pauses) and pauses[0] == RETRY_SECONDS and max(pauses) == RETRY_MOST_SECONDS
    assert memory.reports.lines[0] == "replica 1 did not start, next try in 10 s: ConnectionError: no node has room"
    memory.start_fails = False
    memory.now = 1e4
    pool.look()
    assert [replica.replica_rank for replica in pool.updates.all()] == [0, len(tried) + 1]


def test_a_pool_that_is_stopped_starts_nothing_and_names_all_that_runs() -> None:
    memory = Memory()
    pool = pool_of(memory, 2)
    memory.nodes[2] = "ready"
    assert pool.stop() == memory.replicas
    pool.look()
    assert len(memory.replicas) == 2


class Blocked(Memory):
    """Starts that end when they are given up."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up = threading.Event()

    def start(self, rank: int) -> tuple[Any, JoinTimes]:
        assert self.given_up.wait(100), "the start was not given up"
        raise ConnectionError("given up")

    def give_up(self) -> None:
        self.given_up.set()


def test_a_pool_that_is_stopped_has_no_thread_any_more() -> None:
    """A thread that calls Ray after it was disconnected ends the process, and a complete run would have failed."""
    memory = Blocked()
    pool = pool_of(memory, 1)
    threads: list[threading.Thread] = []

    def run(action: Any) -> None:
        threads.append(threading.Thread(target=action, daemon=True))
        threads[-1].start()

    pool._run = run
    pool.start()
    memory.nodes[1] = "ready"
    pool.look()
    assert [thread.is_alive() for thread in (pool._thread, *threads)] == [True, True]
    assert pool.stop() == memory.replicas
    threads[0].join(1)  # it has left the pool, and may be about to end
    assert [thread.is_alive() for thread in (pool._thread, *threads)] == [False, False]
    assert memory.reports.lines == [], "a start that is given up has not failed"


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
