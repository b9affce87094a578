"""Replicas that join, fail and leave in any order, with processes and nodes in memory."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.ml.trainer.replicas.replicas_in_memory import Memory, Replica, pool_of
from verl_omni.trainer.replicas.replica_pool import RETRY_MOST_SECONDS
from verl_omni.weight_sync.errors import TooFewReplicas


class AnyOrder(RuleBasedStateMachine):
    """Nodes, processes, updates and requests in any order."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.memory = Memory()
        self.version = 0
        self.pool = pool_of(self.memory, count)
        self.updates = self.pool.updates
        self.added = count

    def some(self, draw: int) -> Replica | None:
        """One of the replicas that were not stopped."""
        running = [replica for replica in self.memory.replicas if not replica.stopped]
        return running[draw % len(running)] if running else None

    @precondition(lambda self: len(self.memory.nodes) < 4)
    @rule()
    def a_node_joins(self) -> None:
        self.memory.nodes[self.added] = "ready"
        self.added += 1

    @rule(draw=st.integers(0, 9))
    def a_node_dies(self, draw: int) -> None:
        if replica := self.some(draw):
            replica.alive = False
            self.memory.nodes.pop(replica.node, None)

    @rule(draw=st.integers(0, 9))
    def a_node_is_being_removed(self, draw: int) -> None:
        if (replica := self.some(draw)) and replica.node in self.memory.nodes:
            self.memory.nodes[replica.node] = "leaving"

    @rule(fails=st.booleans())
    def starts_fail(self, fails: bool) -> None:
        self.memory.start_fails = fails

    @rule(draw=st.integers(0, 9), what=st.sampled_from(["alive", "answers", "takes"]), value=st.booleans())
    def a_process_changes(self, draw: int, what: str, value: bool) -> None:
        if (replica := self.some(draw)) and (what != "alive" or not value):
            setattr(replica, what, value)

    @rule(seconds=st.sampled_from([0.0, RETRY_MOST_SECONDS]))
    def the_pool_looks(self, seconds: float) -> None:
        self.memory.now += seconds
        self.pool.look()

    @rule()
    def weights_are_sent(self) -> None:
        self.version += 1
        reached = [replica for replica in self.updates.all() if replica.works and replica.takes]
        try:
            self.updates.update_weights(self.version)
        except TooFewReplicas:
            assert not reached
        assert self.updates.replicas == reached
        assert self.updates.versions_by_host({}) == ({"host": self.version} if reached else {})
        assert set(self.updates.versions()) <= {self.version}

    @rule(draw=st.integers(0, 9))
    def weights_are_sent_while_the_pool_looks(self, draw: int) -> None:
        """In the trainer's thread, and a replica does not take them: what the pool has found is true no more."""
        room = self.memory.room

        def slow(replicas: Any) -> Any:
            free = room(replicas)
            if replica := self.some(draw):
                replica.takes = False
            self.weights_are_sent()
            return free

        self.memory.room = slow
        try:
            self.pool.look()
        finally:
            self.memory.room = room

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
        if (replica := self.some(draw)) and replica.works and replica.requests:
            replica.requests -= 1

    @rule(looks=st.integers(1, 2))
    def a_batch_is_generated(self, looks: int) -> None:
        with self.updates.generating(self.version):
            for _ in range(looks):
                self.pool.look()
            assert {replica.server_address for replica in self.updates.replicas} == self.memory.serving()

    @invariant()
    def what_serves_has_the_current_version(self) -> None:
        if hasattr(self, "memory"):
            assert {replica.version for replica in self.memory.router.values()} <= {self.version}
            assert all(replica in self.updates.replicas for replica in self.memory.router.values())

    @invariant()
    def a_replica_that_leaves_finishes_its_samples(self) -> None:
        if hasattr(self, "memory"):
            assert not self.memory.interrupted & self.memory.reports.left

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
        assert sorted(replica.node for replica in self.updates.replicas) == sorted(self.memory.nodes)
        assert self.memory.router == {replica.server_address: replica for replica in self.updates.replicas}
        others = [replica for replica in self.memory.replicas if replica not in self.updates.replicas]
        assert all(replica.stopped == 1 for replica in others)


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
