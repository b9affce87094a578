"""Replacement of rollout and reward pods: decisions, and changes of a RayCluster, by name."""

from dataclasses import replace

import pytest

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.cluster.errors import Conflict
from omni_operator.reconcile.pod_replacement import change
from omni_operator.status.decisions.rolling import find_steps, review_rolling
from omni_operator.status.decisions.situation import GiveUpTemplate, ReplacePods, StartReplacement
from omni_operator.status.observed.job_facts import JobFacts, RollingUpdate
from omni_operator.status.observed.observation import Attempt, Observation, PodGroup, TrainerReport
from tests.control.status.rolled_pods import BAD, DEADLINE, START, World, cluster_of, group_of


def replace_all(world: World) -> list[list[str]]:
    """Let everything that new pods need happen after each pass; the pods that each step replaced."""
    replaced = []
    for _ in range(20):
        if isinstance(step := world.step(), ReplacePods):
            replaced.append([name for name in step.removed if name in world.pods])
        world.kuberay()
        for name, pod in list(world.pods.items()):
            if pod.template == world.wanted:
                world.serve(name, 9)
            if pod.deleting:
                world.gone(name)
    return replaced


def replacing(target: str = "b") -> World:
    """Two pods of which one is gone, because it is replaced; the new one, `pod-3`, does not serve yet."""
    world = World(2, 1, target=target)
    for _ in range(2):
        world.step()
    world.kuberay()
    world.gone("pod-1")
    return world


def test_pods_that_do_not_serve_come_first_then_the_oldest_weights_then_the_oldest_pods() -> None:
    world = World(4, 1, target="b")
    world.versions = {"10.0.0.1": 7, "10.0.0.3": 5, "10.0.0.4": 7}
    assert replace_all(world) == [["pod-2"], ["pod-3"], ["pod-1"], ["pod-4"]]
    assert replace_all(World(4, 3, target="b")) == [["pod-1", "pod-2", "pod-3"], ["pod-4"]]


def test_a_new_pod_that_is_not_ready_does_not_serve_though_its_address_did() -> None:
    """The trainer's report is older than the pod, whose address an earlier one had."""
    world = replacing()
    world.versions["10.0.0.3"] = 8
    assert world.step() is None


def test_without_a_report_of_the_replicas_nothing_is_replaced_or_given_up() -> None:
    world = World(2, 1, target="b")
    silent = replace(world.attempt, report=TrainerReport(attempt=1, at=START))
    later = Observation(report=TrainerReport(attempt=2, at=START, replicas={"10.0.0.1": 1}))
    for attempt in (silent, replace(world.attempt, report=later.attempt(1).report)):
        assert find_steps(world.facts, attempt, START) == ((), None)
        review = review_rolling(world.facts, attempt)
        assert review is not None and "waiting for the trainer's report of its replicas" in review.message


def test_ready_pods_are_not_given_up_before_a_report_of_after_the_deadline() -> None:
    """The trainer's reports do not arrive: whether the new pod serves is not known, unless it is not even ready."""
    world = replacing()
    before = world.attempt
    late = world.now + DEADLINE
    (step,), _ = find_steps(world.facts, before, late)
    assert isinstance(step, GiveUpTemplate), "the pod is not ready"
    world.pods["pod-3"] = replace(world.pods["pod-3"], ready=True)
    before = world.attempt
    assert find_steps(world.facts, before, late) == ((), None)
    (step,), _ = find_steps(world.facts, replace(before, report=replace(before.report, at=late)), late)
    assert isinstance(step, GiveUpTemplate)


@pytest.mark.parametrize("served", [True, False])
def test_pods_without_a_node_do_not_count_where_others_with_the_spec_serve(served: bool) -> None:
    """More pods than there is room for, in the middle of a replacement."""
    world = replacing()
    if served:
        world.serve("pod-3", 2)
    world.scale(4)
    world.kuberay()
    for name in ("pod-4", "pod-5"):
        world.pods[name] = replace(world.pods[name], unschedulable="0/3 nodes are available")
    world.now += 2 * DEADLINE
    assert isinstance(world.step(), GiveUpTemplate) != served


def test_a_pod_with_a_node_has_its_time_from_its_creation_on_where_others_with_the_spec_serve() -> None:
    world = replacing()
    world.serve("pod-3", 2)
    world.now += DEADLINE
    world.scale(3)
    world.kuberay()
    assert world.step() is None
    _, wake = find_steps(world.facts, world.attempt, world.now)
    assert wake == world.now + DEADLINE
    world.now += DEADLINE
    assert isinstance(world.step(), GiveUpTemplate)


def test_a_pass_is_due_at_the_first_deadline_and_not_at_that_of_the_newest_pod() -> None:
    world = replacing()
    begun = world.now
    world.now += DEADLINE / 2
    world.scale(3)
    world.kuberay()
    _, wake = find_steps(world.facts, world.attempt, world.now)
    assert wake == begun + DEADLINE


def test_a_cluster_that_is_being_deleted_gets_no_step() -> None:
    world = replacing()
    late = world.now + DEADLINE
    deleted = replace(world.attempt, cluster=replace(world.cluster, deleting=True))
    assert find_steps(world.facts, world.attempt, late)[0]
    assert find_steps(world.facts, deleted, late) == ((), None)


def test_after_several_changes_the_template_before_is_the_last_whose_pods_served() -> None:
    world = World(3, 1, target="b")
    replace_all(world)
    assert world.body["metadata"]["annotations"] == {}
    for target in ("c", BAD):
        world.target = target
        world.step()
        world.step()
    world.now += DEADLINE
    world.kuberay()
    assert isinstance(world.step(), GiveUpTemplate)
    assert world.wanted == "b"


def test_a_group_without_a_digest_is_left_alone() -> None:
    """An attempt that an earlier version of the operator created."""
    world = World(2, 1, target="b")
    del world.group["template"]["metadata"]
    world.pods = {name: replace(pod, template="") for name, pod in world.pods.items()}
    assert find_steps(world.facts, world.attempt, START) == ((), None)
    assert review_rolling(world.facts, world.attempt) is None


@pytest.mark.parametrize("changed", ["replicas", "template", "group", "fewer"])
def test_a_group_that_changed_in_between_is_a_conflict(changed: str) -> None:
    world = World(2, 1, target="b")
    step = StartReplacement(world.cluster, world.pod_group)
    if changed == "replicas":
        world.group["replicas"] = 3
    elif changed == "template":
        world.group["template"] = group_of("c")["template"]
    elif changed == "group":
        world.group["groupName"] = "other"
    else:
        world.body["spec"]["workerGroupSpecs"].pop()
    with pytest.raises(Conflict, match="its rollout group has changed"):
        change(world.body, step, group_of("b"), START)


def test_the_worst_of_two_groups_is_the_reason_and_the_message_has_both() -> None:
    cluster = cluster_of(
        PodGroup(name=ROLLOUT_GROUP, index=1, replicas=1, template="a", refused="b", refusal="no image"),
        PodGroup(name=REWARD_GROUP, index=2, replicas=1, template="b", replacing=START),
    )
    policies = tuple(RollingUpdate(group=name, template="b") for name in (ROLLOUT_GROUP, REWARD_GROUP))
    facts = JobFacts(uid="j", generation=1, created=START, rolling=policies)
    report = TrainerReport(attempt=1, at=START, replicas={}, judges={})
    review = review_rolling(facts, Attempt(number=1, cluster=cluster, report=report))
    assert review is not None and review.reason == "RollingUpdate"
    assert review.message == "no image; 0 of 1 reward pods have the current spec and serve, 1 missing or not ready"
