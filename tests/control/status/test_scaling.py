"""How many rollout and reward pods a job has, by the samples and requests that wait for them."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.status.decisions.scaling import recommend, review_scaling, scale
from omni_operator.status.observed.job_facts import Autoscaling, JobFacts, PoolFacts
from omni_operator.status.observed.observation import Attempt, PodGroup
from omni_operator.status.observed.queue_history import PEAKS_KEPT, QueueHistory, add_peak
from omni_operator.status.observed.running_pods import as_running
from omni_operator.status.observed.trainer_report import merge_event, parse_event
from omni_operator.status.report.progress import count_accelerators
from tests.control.status.rolled_pods import START, cluster_of

WINDOW = timedelta(seconds=60)
POLICY = Autoscaling(least=2, most=6, share=10, window=WINDOW)
# Seconds since the last report, and how many samples wait.
reports = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), min_size=1, max_size=80)


def replay(given: list[tuple[int, int]], first: int) -> list[tuple[datetime, int, int]]:
    """Time, samples and pods after each report."""
    now = START
    history = None
    pods = first
    replayed = []
    for seconds, samples in given:
        now += timedelta(seconds=seconds)
        history = add_peak(history, samples, now)
        pods = recommend(POLICY, history, pods, now)
        replayed.append((now, samples, pods))
    return replayed


@given(reports, st.integers(1, 9))
def test_pods_are_within_the_limits_and_enough_for_what_waits(given: list[tuple[int, int]], first: int) -> None:
    for _, samples, pods in replay(given, first):
        assert POLICY.least <= pods <= POLICY.most
        assert pods >= min(POLICY.most, -(-samples // POLICY.share)), "pods are added at once"


@given(reports, st.integers(2, 6))
@example([(1, 60), (30, 0), (29, 0), (1, 0), (1, 0)], 2)
def test_none_is_removed_within_a_window_of_a_report_that_needed_it(given: list[tuple[int, int]], first: int) -> None:
    replayed = replay(given, first)
    for index in range(1, len(replayed)):
        (_, _, before) = replayed[index - 1]
        (now, _, after) = replayed[index]
        if after < before:
            assert now - replayed[0][0] >= WINDOW, "what waited before the first report is not known"
            seen = [samples for at, samples, _ in replayed[: index + 1] if at > now - WINDOW]
            assert after == max(POLICY.least, -(-max(seen) // POLICY.share)), "one window after the last peak"
            added = [at for (_, _, fewer), (at, _, pods) in pairwise(replayed[:index]) if pods > fewer]
            assert all(now - at >= WINDOW for at in added), "no flapping"


def test_pods_of_a_peak_stay_for_exactly_one_window() -> None:
    replayed = replay([(1, 60), *[(20, 0)] * 6], 2)
    assert [pods for _, _, pods in replayed] == [6, 6, 6, 2, 2, 2, 2]


def test_without_reports_the_number_stays_but_the_limits_hold() -> None:
    assert [recommend(POLICY, None, pods, START) for pods in (1, 4, 9)] == [2, 4, 6]


def test_a_trainer_whose_reports_stop_keeps_its_pods() -> None:
    history = add_peak(add_peak(None, 60, START), 0, START + timedelta(seconds=30))
    times = [START + timedelta(seconds=seconds) for seconds in (59, 60, 89, 90, 9000)]
    recommended = [recommend(POLICY, history, 6, now) for now in times]
    assert recommended == [6, 2, 2, 6, 6], "the last report is as old as a window, so it does not say what waits"


@pytest.mark.parametrize("jump", [timedelta(hours=-20), timedelta(seconds=-70), timedelta(seconds=-1)])
def test_pods_are_removed_one_window_after_the_peak_when_the_clock_was_set_back(jump: timedelta) -> None:
    history = add_peak(add_peak(None, 60, START), 60, START + 2 * WINDOW)
    begin = START + 2 * WINDOW + jump
    recommended = []
    for seconds in range(1, 122, 20):
        history = add_peak(history, 0, begin + timedelta(seconds=seconds))
        recommended.append(recommend(POLICY, history, 6, begin + timedelta(seconds=seconds)))
    assert recommended == [6, 6, 6, 2, 2, 2, 2]


@given(reports)
def test_a_history_is_short_and_never_forgets_the_largest_number_of_a_window(given: list[tuple[int, int]]) -> None:
    now = START
    history = None
    seen = []
    for seconds, samples in given:
        now += timedelta(seconds=seconds)
        history = add_peak(history, samples, now)
        seen.append((now, samples))
        assert len(history.peaks) <= PEAKS_KEPT and history.last == samples
        assert history.most(now - WINDOW) >= max(number for at, number in seen if at > now - WINDOW)


def test_a_queue_that_only_shrinks_keeps_few_peaks() -> None:
    history: QueueHistory | None = None
    for number in range(1000):
        history = add_peak(history, 1000 - number, START + timedelta(seconds=number))
    assert history is not None and len(history.peaks) == PEAKS_KEPT
    assert history.most(START) == 1000, "older peaks are kept as if they were newer"


JUDGES = Autoscaling(least=1, most=9, share=4, window=2 * WINDOW)
ACCELERATORS = {ROLLOUT_GROUP: 2, REWARD_GROUP: 3}
# Seconds since the last report, samples and requests that wait; None: the report does not have the number.
waits = st.none() | st.integers(0, 100)
both = st.lists(st.tuples(st.integers(1, 40), waits, waits), max_size=60)


def pool(group: str, policy: Autoscaling | None, pods: int) -> PoolFacts:
    return PoolFacts(group=group, pods=pods, accelerators=ACCELERATORS[group], live=True, autoscaling=policy)


@given(both, st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_each_group_follows_its_own_queue_by_the_same_decision(
    given: list[tuple[int, int | None, int | None]], rollouts: int, judges: int, first: bool, second: bool
) -> None:
    policies = {ROLLOUT_GROUP: POLICY if first else None, REWARD_GROUP: JUDGES if second else None}
    spec = {ROLLOUT_GROUP: rollouts, REWARD_GROUP: judges}
    pools = [pool(group, policies[group], pods) for group, pods in spec.items()]
    trainer = PoolFacts(group=TRAINER_GROUP, pods=1, accelerators=1)
    facts = JobFacts(uid="j", generation=1, created=START, trainer=trainer, rollouts=pools[0], judges=pools[1])
    groups = enumerate(spec.items(), start=1)
    cluster = cluster_of(*(PodGroup(name=group, index=index, replicas=pods) for index, (group, pods) in groups))
    histories: dict[str, QueueHistory | None] = dict.fromkeys(spec)
    expected = dict(spec)
    report = None
    now = START
    for seconds, samples, requests in given:
        now += timedelta(seconds=seconds)
        numbers = {"rollout/queued_samples": samples, "reward/queued_requests": requests}
        event = parse_event(json.dumps({"event": "heartbeat", **numbers}).encode())
        report = merge_event(report, event, 1, now)
        attempt = Attempt(number=1, cluster=cluster, report=report)
        for step in scale(facts, attempt, now):
            changed = (
                replace(g, replicas=step.change.new) if g.name == step.change.group else g for g in cluster.groups
            )
            cluster = replace(cluster, groups=tuple(changed))
        for group, number in zip(spec, numbers.values(), strict=True):
            if number is not None:
                histories[group] = add_peak(histories[group], number, now)
            if policy := policies[group]:
                expected[group] = recommend(policy, histories[group], expected[group], now)
        assert {group.name: group.replicas for group in cluster.groups} == expected
        actual = as_running(facts, Attempt(number=1, cluster=cluster))
        assert [recommended.pods for recommended in actual.pools] == list(expected.values())
        assert count_accelerators(actual, Attempt(number=1, cluster=cluster)) == 1 + sum(
            ACCELERATORS[group] * pods for group, pods in expected.items()
        )
        conditions = review_scaling(actual, attempt, now)
        for name, group in (("RolloutsScaled", ROLLOUT_GROUP), ("RewardsScaled", REWARD_GROUP)):
            assert (conditions[name].reason == "NotAutoscaled") is (policies[group] is None)
            assert (conditions[name].reason == "NoReports") is (
                policies[group] is not None and histories[group] is None
            )
