"""For how many rollout pods a queued attempt asks: properties of the decision, for any pools, times and annotations."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.names import ROLLOUT_GROUP
from omni_operator.status.decisions.queue_requests import MOST_STEPS, find_request, next_number
from omni_operator.status.decisions.situation import AskForPods
from omni_operator.status.observed.observation import Asked, Attempt, ObservedRayJob, PoolSize

START = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = timedelta(minutes=2)
SECONDS = st.integers(-100_000, 100_000).map(lambda count: timedelta(seconds=count))

ASKED = st.builds(Asked, SECONDS.map(lambda span: START + span), st.integers(0, 99))


@st.composite
def sizes(draw: st.DrawFn) -> PoolSize:
    fewest = draw(st.integers(1, 1023))
    most = draw(st.integers(fewest + 1, 1024))
    return PoolSize(ROLLOUT_GROUP, draw(st.integers(fewest, most)), 1, fewest, fewest, most)


def rayjob(size: PoolSize, created: datetime = START, asked: Asked | None = None) -> ObservedRayJob:
    return ObservedRayJob(
        name="red-a01",
        uid="u",
        attempt=1,
        created=created,
        suspended=True,
        deployment="Suspended",
        pools=(size,),
        asked=asked,
    )


@given(sizes())
def test_a_round_asks_for_few_numbers_each_smaller_down_to_the_fewest_and_then_for_all(size: PoolSize) -> None:
    numbers = [size.most]
    while (number := next_number(replace(size, pods=numbers[-1]))) != size.most:
        numbers.append(number)
    assert numbers == sorted(set(numbers), reverse=True) and numbers[-1] == size.fewest
    assert len(numbers) == min(MOST_STEPS, size.most - size.fewest) + 1
    steps = [before - after for before, after in pairwise(numbers)]
    assert max(steps) - min(steps) <= 1


@given(sizes(), SECONDS, SECONDS, st.none() | ASKED)
def test_any_times_lead_to_a_number_in_range_or_to_a_pass_within_the_longest_pause(
    size: PoolSize, created: timedelta, since: timedelta, asked: Asked | None
) -> None:
    attempt = Attempt(number=1, rayjob=rayjob(size, START + created, asked))
    requests, wake = find_request(attempt, START + since, PATIENCE, START)
    assert wake is not None and START < wake <= START + 8 * PATIENCE
    for request in requests:
        assert isinstance(request, AskForPods)
        assert request.old == size.pods and size.fewest <= request.new <= size.most and request.new != request.old


@settings(max_examples=40)
@given(sizes(), SECONDS, st.lists(st.sampled_from(["late", "back"]), max_size=5))
def test_every_number_is_asked_for_again_and_again_whatever_the_clock_did(
    size: PoolSize, since: timedelta, clock: list[str]
) -> None:
    now = START
    begun = START + since
    asking = rayjob(size)
    numbers: list[int] = []
    moves = iter(clock)
    # Until the clock has passed the begin of the wait again, at which all pods are asked for.
    for _ in range(30 * (MOST_STEPS + 1)):
        requests, wake = find_request(Attempt(number=1, rayjob=asking), begun, PATIENCE, now)
        for request in requests:
            assert isinstance(request, AskForPods)
            asking = rayjob(replace(size, pods=request.new), asked=Asked(now, request.rounds))
            numbers.append(request.new)
        now = wake + {"late": timedelta(hours=5), "back": timedelta(hours=-9)}.get(next(moves, ""), timedelta())
    tail = numbers[-(MOST_STEPS + 1) :]
    assert {size.most, size.fewest} <= set(tail)
