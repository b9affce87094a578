"""Leader election: at no time two replicas that may write, whatever happens to their requests, watches and clocks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from e2e.fake_cluster import FakeCluster
from omni_operator.cluster.errors import ClusterError, NotLeader, Unavailable
from omni_operator.cluster.kinds import EVENTS, LEASES, Body, Kind
from omni_operator.cluster.leader.leader_election import LONGEST_SECONDS, MOST_TRANSITIONS, LeaderElection, LeaseTimes
from omni_operator.cluster.leader.write_fence import WriteFence, lease_clock

TIMES = LeaseTimes(10)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Candidate(LeaderElection):
    """A replica whose waits take no time."""

    @override
    async def _wait(self, seconds: float) -> None:
        self._changed.clear()
        await asyncio.sleep(0)


class Replica:
    """A candidate with its own clock.

    Attributes:
        log: what it began and ended.
        finishes: whether its passes end by themselves.
    """

    def __init__(self, cluster: FakeCluster, name: str, clock: Callable[[], float]) -> None:
        self.log: list[str] = []
        self.finishes = True
        self.fence = WriteFence(clock)
        self.election = Candidate(
            cluster,
            self.fence,
            TIMES,
            "system",
            "omni",
            name,
            f"http://{name}:8090",
            lambda: self.log.append("begun"),
            self._ended,
            lambda: NOW + timedelta(seconds=clock()),
        )

    async def _ended(self, seconds: float) -> bool:
        self.log.append(f"ended within {seconds:g}, may write: {self.writes}")
        return self.finishes

    @property
    def writes(self) -> bool:
        return self.fence.left() > 0

    async def step(self) -> None:
        """What `run` does next, without a wait."""
        if not self.election.leads:
            await self.election._try()
        elif not await self.election._renew() and not self.writes:
            await self.election._lose()


class World:
    """Replicas, an API server, and the time, which moves only when the test says so."""

    def __init__(self, *names: str) -> None:
        self.at = 0.0
        self.cluster = FakeCluster(lambda: NOW)
        self.replicas = [Replica(self.cluster, name, lambda: self.at) for name in names]
        self.delivered = [0] * len(names)

    def deliver(self, place: int) -> None:
        """The watch of a replica delivers what happened up to now."""
        for change, kind, body in self.cluster.events[self.delivered[place] :]:
            if kind == LEASES:
                self.replicas[place].election.observe(change, body)
        self.delivered[place] = len(self.cluster.events)

    def lease(self) -> Body:
        return self.cluster.get(LEASES, "system", "omni")

    @property
    def holder(self) -> str | None:
        return self.lease()["spec"].get("holderIdentity")


async def test_an_api_server_that_is_too_slow_is_named(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a")
    (a,) = world.replicas
    read = world.cluster.read

    async def never(kind: Kind, *where: str) -> Body | None:
        raise TimeoutError

    world.cluster.read = never
    await a.step()
    world.cluster.read = read
    assert not a.election.leads
    assert caplog.messages == [
        "Lease system/omni: not acquired, retrying: no answer in time; if the API server stays this slow, raise "
        "LEASE_SECONDS (10 now)"
    ]


async def test_the_first_leads_and_the_second_takes_over_when_the_first_is_dead() -> None:
    world = World("a", "b")
    a, b = world.replicas
    await a.step()
    await b.step()
    assert (a.writes, b.writes, world.holder, a.log, b.log) == (True, False, "a", ["begun"], [])
    for _ in range(20):
        world.at += TIMES.renewal
        await a.step()
        world.deliver(1)
        await b.step()
    assert (a.writes, b.writes, a.log) == (True, False, ["begun"]), "it renews"
    world.at += TIMES.duration - 0.1
    await b.step()
    assert not b.writes, "not before its time"
    world.at += 0.1
    await b.step()
    assert (b.writes, world.holder, world.lease()["spec"]["leaseTransitions"]) == (True, "b", 1)
    assert b.election.leader_url is None
    world.deliver(0)
    await a.step()
    assert (a.writes, a.log[1:]) == (False, ["ended within 0, may write: False"])
    assert a.election.leader_url == "http://b:8090"
    notes = [(body["reason"], body["note"]) for body in world.cluster.all(EVENTS)]
    assert notes == [("LeaderElected", "a leads"), ("LeaderElected", "b leads; before: a")]


@asynccontextmanager
async def leading(replica: Replica) -> AsyncIterator[None]:
    """The replica runs, and has begun to lead; afterwards it is stopped."""
    running = asyncio.create_task(replica.election.run())
    while not replica.election.leads:
        await asyncio.sleep(0)
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_replica_that_stops_hands_over_at_once() -> None:
    world = World("a", "b")
    a, b = world.replicas
    async with leading(a):
        await b.step()
    assert (world.holder, a.writes, a.log) == (None, False, ["begun", "ended within 10, may write: True"])
    assert world.lease()["metadata"]["annotations"] == {}
    b.election._changed.clear()
    world.deliver(1)
    assert b.election._changed.is_set(), "its wait ends"
    await b.step()
    assert (world.holder, b.writes, world.at) == ("b", True, 0.0)


async def test_a_lease_expires_if_passes_had_to_be_cancelled() -> None:
    world = World("a")
    (a,) = world.replicas
    a.finishes = False
    async with leading(a):
        pass
    assert (world.holder, a.writes) == ("a", False), "a write of theirs may still be on its way"


async def test_a_process_that_is_restarted_in_its_pod_leads_at_once() -> None:
    world = World("a", "a")
    first, again = world.replicas
    await first.step()
    world.at += 1.0
    await again.step()
    assert again.writes


async def test_a_failed_renewal_is_repeated_until_the_time_is_over() -> None:
    world = World("a")
    (a,) = world.replicas
    await a.step()
    world.cluster.failures = lambda verb, kind, name: Unavailable("down")
    world.at += TIMES.writes - 0.1
    await a.step()
    assert a.log == ["begun"]
    world.at += 0.1
    await a.step()
    assert a.log == ["begun", "ended within 0, may write: False"]
    world.cluster.failures = lambda verb, kind, name: None
    await a.step()
    assert a.writes, "no other replica took it"


async def test_a_renewal_whose_answer_is_lost_costs_nothing() -> None:
    world = World("a")
    (a,) = world.replicas
    await a.step()
    world.cluster.change(LEASES, "system", "omni", spec={"renewTime": "2026-01-01T00:00:09.000000Z"})
    world.at += TIMES.renewal
    for _ in range(2):
        await a.step()
    assert (a.log, a.fence.left()) == (["begun"], TIMES.writes)


async def test_a_deleted_lease_makes_no_second_leader() -> None:
    world = World("a", "b")
    a, b = world.replicas
    await a.step()
    await b.step()
    world.deliver(1)
    world.cluster.remove(LEASES, "system", "omni")
    world.deliver(1)
    await b.step()
    assert (a.writes, b.writes) == (True, False), "the leader may not have seen it"
    await a.step()
    assert world.cluster.all(LEASES) == []
    world.at += TIMES.duration
    await b.step()
    await a.step()
    assert (a.writes, b.writes) == (False, True)


async def test_after_a_released_lease_is_deleted_the_next_leads_at_once() -> None:
    world = World("a", "b")
    a, b = world.replicas
    await a.step()
    await a.election._resign()
    world.deliver(1)
    world.cluster.remove(LEASES, "system", "omni")
    world.deliver(1)
    await b.step()
    assert (a.writes, b.writes) == (False, True)


async def test_no_value_of_a_lease_keeps_all_replicas_from_leading() -> None:
    """An administrator, or a restore, may leave a Lease that no replica wrote."""
    world = World("a")
    (a,) = world.replicas
    await a.step()
    await a.election._resign()
    long = {"holderIdentity": "gone", "leaseDurationSeconds": MOST_TRANSITIONS, "leaseTransitions": MOST_TRANSITIONS}
    world.cluster.change(LEASES, "system", "omni", spec=long)
    world.deliver(0)
    await a.step()
    assert not a.writes, "the holder may be a replica"
    world.at += LONGEST_SECONDS
    await a.step()
    assert (a.writes, world.holder) == (True, "a")
    assert world.lease()["spec"]["leaseTransitions"] == MOST_TRANSITIONS, "the API server takes no more"


@pytest.mark.parametrize("held", [True, False], ids=["with the Lease", "without the Lease"])
async def test_a_lease_that_is_older_than_before_ends_all_that_rests_on_what_was_observed(held: bool) -> None:
    """etcd was restored from a snapshot: the leader stops at once, and does not take the Lease again."""
    world = World("a")
    (a,) = world.replicas
    a.election.restored = lambda: a.log.append("restored")
    meta = {"name": "other", "namespace": "system"}
    world.cluster.make({"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta})
    saved = world.cluster.save()
    async with leading(a):
        if held:
            saved = world.cluster.save()
        for _ in range(50):
            world.at += TIMES.renewal
            await asyncio.sleep(0)
        assert a.log == ["begun"]
        world.cluster.restore(saved)
        for _ in range(50):
            await asyncio.sleep(0)
        assert a.log == ["begun", "ended within 0, may write: False", "restored"]
        assert (a.election.leads, a.writes) == (False, False)
        world.cluster.counts()
        for _ in range(50):
            world.at += TIMES.duration
            await asyncio.sleep(0)
        assert world.cluster.log == []


async def test_an_answer_that_the_watch_has_overtaken_is_no_older_state(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("a", "b")
    a, b = world.replicas
    await b.step()
    read = world.cluster.read
    world.at = TIMES.renewal

    async def overtaken(kind: Kind, namespace: str, name: str) -> Body | None:
        answer = await read(kind, namespace, name)
        await b.step()
        world.deliver(0)
        assert answer != world.lease()
        return answer

    monkeypatch.setattr(world.cluster, "read", overtaken)
    await a.step()
    assert (a.log, a.election.leader_url) == ([], "http://b:8090")


def test_a_fence_allows_writes_until_its_time_and_a_closed_one_none() -> None:
    assert lease_clock() <= lease_clock()
    fence = WriteFence(lambda: 10.0)
    with pytest.raises(NotLeader):
        fence.require("patch jobs")
    fence.open_until(10.5)
    assert fence.require("patch jobs") == 0.5
    fence.open_until(10.0)
    with pytest.raises(NotLeader):
        fence.require("patch jobs")


PLACES = st.integers(0, 2)
ACTIONS = st.one_of(
    st.tuples(st.just("followers"), PLACES),
    st.tuples(st.sampled_from(["step", "deliver", "answer lost", "no request", "stops"]), PLACES),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 2.0, 3.4, 6.9, 9.6, 11.2])),
)


@settings(max_examples=150, deadline=None)
@given(
    actions=st.lists(ACTIONS, min_size=5, max_size=40),
    rates=st.tuples(*[st.floats(0.9, 1.1)] * 3),
    offsets=st.tuples(*[st.floats(-1e6, 1e6)] * 3),
)
def test_two_replicas_never_write_at_the_same_time(
    actions: list[tuple[str, float]], rates: tuple[float, ...], offsets: tuple[float, ...]
) -> None:
    world = World("a", "b", "c")
    for index, replica in enumerate(world.replicas):
        replica.fence.clock = lambda index=index: world.at * rates[index] + offsets[index]

    async def play() -> None:
        for action, number in actions:
            if action == "wait":
                world.at += number
            elif action == "deliver":
                world.deliver(int(number))
            elif action == "followers":
                for replica in world.replicas:
                    if not replica.election.leads:
                        await replica.step()
            elif action == "stops":
                await world.replicas[int(number)].election._resign()
            else:
                await lossy(world, world.replicas[int(number)], action)
            writers = [replica.election.identity for replica in world.replicas if replica.writes]
            assert len(writers) <= 1, (action, number, writers)
        world.at += 20
        for _ in range(3):
            for index, replica in enumerate(world.replicas):
                await replica.step()
                world.deliver(index)
            world.at += 2
        assert sum(replica.writes for replica in world.replicas) <= 1

    asyncio.run(play())


async def lossy(world: World, replica: Replica, action: str) -> None:
    """A step whose writes are not carried out, or whose answers are lost."""

    def no_request(verb: str, kind: Kind, name: str) -> ClusterError | None:
        return Unavailable("no connection") if action == "no request" else None

    world.cluster.failures = no_request
    patch = world.cluster.patch

    async def lost(kind: Kind, body: Body, changes: Body) -> Body:
        await patch(kind, body, changes)
        raise Unavailable("no answer")

    if action == "answer lost":
        world.cluster.patch = lost
    try:
        await replica.step()
    finally:
        world.cluster.patch = patch
        world.cluster.failures = lambda verb, kind, name: None
