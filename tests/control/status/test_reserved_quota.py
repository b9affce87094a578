"""When quota of a queue is requested and returned: properties of the decision, for any numbers of pods."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from omni_operator.api.names import ROLLOUT_GROUP
from omni_operator.status.decisions.queue_requests import restore_numbers
from omni_operator.status.decisions.scaling import follow_pods
from omni_operator.status.decisions.situation import GroupChange, ReserveQuota, ScaleGroup
from omni_operator.status.observed.job_facts import Autoscaling, JobFacts, PoolFacts
from omni_operator.status.observed.observation import (
    Attempt,
    ObservedPod,
    ObservedRayJob,
    PodGroup,
    PoolSize,
    RequestedPods,
)
from tests.control.status.rolled_pods import START, cluster_of

POLICY = Autoscaling(least=1, most=9, share=10, window=timedelta(seconds=60))
NUMBER = st.integers(1, 9)


def rayjob(requested: int, created_with: int = 1) -> ObservedRayJob:
    return ObservedRayJob(
        name="red-a01",
        uid="u",
        attempt=1,
        created=START,
        requested=(RequestedPods("trainer", 0, 1), RequestedPods(ROLLOUT_GROUP, 1, requested)),
        pools=(PoolSize("trainer", 1, 1), PoolSize(ROLLOUT_GROUP, created_with, 1)),
    )


@given(NUMBER, NUMBER, st.none() | NUMBER, st.integers(0, 12), st.booleans(), st.booleans())
def test_quota_is_requested_before_pods_and_returned_after_them(
    requested: int, replicas: int, new: int | None, present: int, live: bool, gated: bool
) -> None:
    cluster = cluster_of(
        PodGroup(name="trainer", index=0, replicas=3, gated=True),
        PodGroup(name=ROLLOUT_GROUP, index=1, replicas=replicas, gated=gated),
    )
    pods = tuple(
        ObservedPod(name=f"p{number}", uid="u", attempt=1, group=ROLLOUT_GROUP, created=START)
        for number in range(present)
    )
    rollouts = PoolFacts(group=ROLLOUT_GROUP, live=live, autoscaling=POLICY)
    facts = JobFacts(uid="j", generation=1, created=START, rollouts=rollouts)
    changes = (ScaleGroup(cluster, GroupChange(1, ROLLOUT_GROUP, replicas, new)),) if new and live and gated else ()
    with_request = rayjob(requested)
    steps = follow_pods(facts, Attempt(number=1, rayjob=with_request, cluster=cluster, pods=pods), changes)
    wanted = changes[0].change.new if changes else replicas
    request = ReserveQuota(with_request, with_request.requested[1], wanted)
    if live and gated and wanted > requested:
        assert steps == (request, *changes)
    elif live and gated and present <= wanted < requested:
        assert steps == (*changes, request)
    else:
        assert steps == changes


@given(NUMBER, NUMBER)
def test_an_attempt_that_waits_asks_for_the_pods_that_it_was_created_with(requested: int, created_with: int) -> None:
    waiting = rayjob(requested, created_with)
    request = ReserveQuota(waiting, waiting.requested[1], created_with)
    assert restore_numbers(waiting, Attempt(rayjob=waiting).sizes) == (None if requested == created_with else request)
