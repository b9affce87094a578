"""Replacement of rollout and reward pods: decisions, changes of a RayCluster, and KubeRay, in any order of events."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, rolling_names
from omni_operator.cluster.errors import Conflict
from omni_operator.cluster.object_parser import parse_raycluster
from omni_operator.cluster.pod_replacement import change
from omni_operator.status.job_facts import JobFacts, RollingUpdate
from omni_operator.status.observation import Observation, ObservedPod, ObservedRayCluster, PodGroup, TrainerReport
from omni_operator.status.rolling import ServingPod, compare, find_steps, next_step, review_rolling
from omni_operator.status.situation import FinishReplacement, GiveUpTemplate, ReplacePods, StartReplacement

START = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE = timedelta(seconds=100)
BAD = "bad"  # a template whose pods never serve


def group_of(template: str, replicas: int = 1, name: str = ROLLOUT_GROUP) -> dict[str, Any]:
    """A worker group as KubeRay has it; its image is named like its template."""
    containers, labels = [{"name": "ray", "image": template}], {rolling_names(name).template: template}
    return {
        "groupName": name, "replicas": replicas, "resources": {"CPU": "16"}, "rayStartParams": {"of": template},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
    }  # fmt: skip


@dataclass
class World:
    """A RayCluster, the pods of one of its groups, KubeRay, kubelets and the trainer's reports, in memory."""

    replicas: int
    most: int
    name: str = ROLLOUT_GROUP
    target: str = "a"
    paused: bool = False

    def __post_init__(self) -> None:
        self.now, self.made = START, 0
        self.body: dict[str, Any] = {
            "metadata": {"name": "red-a01-x1", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"workerGroupSpecs": [{"groupName": "trainer"}, group_of("a", self.replicas, self.name)]},
        }
        self.pods: dict[str, ObservedPod] = {}
        self.versions: dict[str, int] = {}  # by address
        self.kuberay()
        for name in self.pods:
            self.serve(name, 1)

    @property
    def group(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["spec"]["workerGroupSpecs"][1]
        return found

    @property
    def pod_group(self) -> PodGroup:
        found = self.cluster.group(self.name)
        assert found is not None
        return found

    @property
    def wanted(self) -> str:
        """The template of the group."""
        return self.pod_group.template

    @property
    def cluster(self) -> ObservedRayCluster:
        return replace(parse_raycluster(self.body), attempt=1)

    @property
    def facts(self) -> JobFacts:
        rolling = RollingUpdate(
            group=self.name, template=self.target, most_unavailable=self.most, deadline=DEADLINE,
            paused="pause" if self.paused else "",
        )  # fmt: skip
        return JobFacts(uid="j", generation=1, created=START, live=True, rolling=(rolling,))

    @property
    def observed(self) -> Observation:
        reported = {"judges" if self.name == REWARD_GROUP else "replicas": dict(self.versions)}
        report = TrainerReport(attempt=1, at=self.now, **reported)
        return Observation(clusters=(self.cluster,), pods=tuple(self.pods.values()), report=report)

    def kuberay(self) -> None:
        """Deletes named pods, and counts all others, also those that are being deleted, as in 1.6.2."""
        named = self.group.get("scaleStrategy", {}).get("workersToDelete", [])
        for name in [name for name in named if name in self.pods]:
            self.delete(name)
        counted = [name for name in self.pods if name not in named]
        for _ in range(self.replicas - len(counted)):
            self.made += 1
            name, template = f"pod-{self.made}", self.wanted
            self.pods[name] = ObservedPod(
                name=name, uid=name, attempt=1, group=self.name, created=self.now, template=template,
                address=f"10.0.0.{self.made}",
            )  # fmt: skip

    def delete(self, name: str) -> None:
        """A pod drains."""
        self.pods[name] = replace(self.pods[name], deleting=True)
        self.versions.pop(self.pods[name].address, None)

    def gone(self, name: str) -> None:
        self.versions.pop(self.pods.pop(name).address, None)

    def serve(self, name: str, version: int) -> None:
        """A pod is ready, and its replica gets weights."""
        pod = self.pods[name]
        if pod.template != BAD and not pod.deleting:
            self.pods[name] = replace(pod, ready=True)
            self.versions[pod.address] = version

    def step(self) -> Any:
        """One pass of the operator, whose invariants are checked."""
        before = self.observed
        steps, _ = find_steps(self.facts, before, 1, self.now)
        assert len(steps) <= 1
        step = steps[0] if steps else None
        if isinstance(step, ReplacePods):
            self.check(step, before)
        if step is not None:
            patch = change(self.body, step, group_of(self.target, name=self.name), self.now)
            annotations = {**self.body["metadata"].get("annotations", {}), **patch["metadata"]["annotations"]}
            self.body["metadata"]["annotations"] = {name: text for name, text in annotations.items() if text}
            self.body["spec"] = copy.deepcopy(patch["spec"])
        return step

    def check(self, step: ReplacePods, before: Observation) -> None:
        """Which pods a step may name."""
        group = self.pod_group
        named = {name for name in step.removed if name not in group.removed and not self.pods[name].deleting}
        assert named, "a request that changes nothing"
        staying = [pod for pod in before.pods if not pod.deleting and pod.name not in group.removed]
        assert all(self.pods[name].template != group.template for name in named), "a pod with the template is replaced"
        serving = [pod for pod in staying if pod.address in self.versions]
        replaced = self.replicas - sum(
            pod.template != group.template or pod.address in self.versions for pod in staying if pod.name not in named
        )
        assert replaced <= self.most, "more are being replaced than may be"
        left = sum(pod.name not in named for pod in serving)
        assert left >= min(len(serving), self.replicas - self.most), "more that serve are replaced than may be"
        leaving = {name for name, pod in self.pods.items() if pod.deleting}
        assert leaving <= set(step.removed), "KubeRay would count them as pods that run"


class AnyOrder(RuleBasedStateMachine):
    """Users, KubeRay, kubelets, replicas and the operator in any order."""

    @initialize(replicas=st.integers(1, 4), most=st.integers(1, 3), name=st.sampled_from([ROLLOUT_GROUP, REWARD_GROUP]))
    def a_job_runs(self, replicas: int, most: int, name: str) -> None:
        self.world = World(replicas, most, name)

    @rule(spec=st.sampled_from(["a", "b", "c", BAD]))
    def the_spec_changes(self, spec: str) -> None:
        self.world.target = spec

    @rule(paused=st.booleans())
    def it_is_paused_or_not(self, paused: bool) -> None:
        self.world.paused = paused

    @rule()
    def kuberay_reconciles(self) -> None:
        self.world.kuberay()

    @rule(draw=st.integers(0, 9), version=st.integers(0, 5))
    def a_pod_serves(self, draw: int, version: int) -> None:
        if self.world.pods:
            self.world.serve(sorted(self.world.pods)[draw % len(self.world.pods)], version)

    @rule(draw=st.integers(0, 9))
    def a_pod_is_deleted_by_others(self, draw: int) -> None:
        if self.world.pods:
            self.world.delete(sorted(self.world.pods)[draw % len(self.world.pods)])

    @rule(draw=st.integers(0, 9))
    def a_pod_is_gone(self, draw: int) -> None:
        if self.world.pods:
            self.world.gone(sorted(self.world.pods)[draw % len(self.world.pods)])

    @rule(seconds=st.sampled_from([1, 60, 200]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule()
    def the_operator_passes(self) -> None:
        assert not (self.world.step() and self.world.paused)

    @invariant()
    def the_condition_is_true_only_when_all_pods_have_the_spec(self) -> None:
        if hasattr(self, "world") and review_rolling(self.world.facts, self.world.observed, 1) is None:
            named = self.world.group.get("scaleStrategy", {}).get("workersToDelete", [])
            staying = [pod for name, pod in self.world.pods.items() if not pod.deleting and name not in named]
            assert {pod.template for pod in staying} <= {self.world.target}

    def teardown(self) -> None:
        """When nothing else happens, all pods have the spec or, if its pods never serve, one whose pods do."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.paused = False
        for _ in range(40):
            steps = 0
            while world.step() is not None:
                steps += 1
                assert steps < 5, "one step follows the other without end"
            world.kuberay()
            for name in list(world.pods):
                world.serve(name, 9)
                if world.pods[name].deleting:
                    world.gone(name)
            world.now += timedelta(seconds=30)
        assert len(world.pods) == world.replicas
        served = {pod.template for pod in world.pods.values()}
        found = review_rolling(world.facts, world.observed, 1)
        if world.target == BAD:
            assert served <= {"a", "b", "c"} and len(served) == 1
            assert found is not None and (found.status, found.reason) == ("False", "RolledBack")
        elif found is None:
            assert served == {world.target}
        else:  # nothing served in its time, so it was given up; another one is served meanwhile
            assert found.reason == "RolledBack" and len(served) == 1
        assert {container["image"] for container in world.group["template"]["spec"]["containers"]} == served
        assert {world.group["rayStartParams"]["of"]} == served, "what belongs to a template changes with it"


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def replace_all(world: World) -> list[list[str]]:
    """Let everything that new pods need happen after each pass; the pods that each step replaced."""
    found = []
    for _ in range(20):
        if isinstance(step := world.step(), ReplacePods):
            found.append([name for name in step.removed if name in world.pods])
        world.kuberay()
        for name, pod in list(world.pods.items()):
            if pod.template == world.wanted:
                world.serve(name, 9)
            if pod.deleting:
                world.gone(name)
    return found


def test_pods_that_do_not_serve_come_first_then_the_oldest_weights_then_the_oldest_pods() -> None:
    world = World(4, 1, target="b")
    world.versions = {"10.0.0.1": 7, "10.0.0.3": 5, "10.0.0.4": 7}
    assert replace_all(world) == [["pod-2"], ["pod-3"], ["pod-1"], ["pod-4"]]
    assert replace_all(World(4, 3, target="b")) == [["pod-1", "pod-2", "pod-3"], ["pod-4"]]


def test_the_next_pod_is_replaced_when_the_new_one_serves_and_not_when_it_is_ready() -> None:
    world = World(2, 1, target="b")
    assert isinstance(world.step(), StartReplacement)
    assert isinstance(world.step(), ReplacePods)
    assert world.step() is None
    world.kuberay()
    world.gone("pod-1")
    world.pods["pod-3"] = replace(world.pods["pod-3"], ready=True)
    assert world.step() is None
    world.versions["10.0.0.3"] = 8
    step = world.step()
    assert isinstance(step, ReplacePods) and step.removed == ("pod-2",)


def test_a_new_pod_that_is_not_ready_does_not_serve_though_its_address_did() -> None:
    """The trainer's report is older than the pod, whose address an earlier one had."""
    world = World(2, 1, target="b")
    world.step()
    world.step()
    world.kuberay()
    world.gone("pod-1")
    world.versions["10.0.0.3"] = 8
    assert world.step() is None


def test_without_a_report_of_the_replicas_nothing_is_replaced_or_given_up() -> None:
    world = World(2, 1, target="b")
    silent = replace(world.observed, report=TrainerReport(attempt=1, at=START))
    other = replace(world.observed, report=TrainerReport(attempt=2, at=START, replicas={"10.0.0.1": 1}))
    for observed in (silent, other, replace(world.observed, report=None)):
        assert find_steps(world.facts, observed, 1, START) == ((), None)
        found = review_rolling(world.facts, observed, 1)
        assert found is not None and "waiting for the trainer's report of its replicas" in found.message


def test_pods_that_do_not_serve_in_time_are_given_up_with_what_they_wait_for() -> None:
    world = World(2, 1, target=BAD)
    world.step()
    world.now += timedelta(seconds=50)
    world.step()
    world.kuberay()
    world.pods["pod-3"] = replace(world.pods["pod-3"], unschedulable="0/3 nodes are available")
    _, wake = find_steps(world.facts, world.observed, 1, world.now)
    assert wake == world.now + DEADLINE, "from the last replacement on"
    world.now += DEADLINE - timedelta(seconds=1)
    assert world.step() is None
    world.now += timedelta(seconds=1)
    assert isinstance(world.step(), GiveUpTemplate)
    found = review_rolling(world.facts, world.observed, 1)
    assert found is not None and found.reason == "RolledBack"
    assert found.message.endswith("pod pod-3: 0/3 nodes are available") and "within 100 s" in found.message
    annotations = world.body["metadata"]["annotations"]
    assert annotations == {rolling_names(ROLLOUT_GROUP).refused: f"{BAD} {found.message}"}
    replace_all(world)
    assert {pod.template for pod in world.pods.values()} == {"a"}
    world.target = "b"
    replace_all(world)
    assert {pod.template for pod in world.pods.values()} == {"b"}


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
    assert find_steps(world.facts, world.observed, 1, START) == ((), None)
    assert review_rolling(world.facts, world.observed, 1) is None


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


def test_without_the_template_before_nothing_is_given_up() -> None:
    """Someone has removed the annotation."""
    world = World(2, 1, target=BAD)
    world.step()
    names = rolling_names(ROLLOUT_GROUP)
    del world.body["metadata"]["annotations"][names.before]
    assert world.body["metadata"]["annotations"].keys() == {names.replacing}
    world.step()
    world.kuberay()
    world.now += 2 * DEADLINE
    assert world.step() is None


def test_the_replacement_ends_when_the_last_new_pod_serves() -> None:
    cluster = ObservedRayCluster(name="c", uid="u", attempt=1, created=START)
    group = PodGroup(name=ROLLOUT_GROUP, index=1, replicas=1, template="b", replacing=START)
    policy = RollingUpdate(group=ROLLOUT_GROUP, template="b", deadline=DEADLINE)
    pod = ServingPod("p", START, "b", None)
    assert next_step(cluster, group, [pod], policy, START) is None
    assert compare(group, [pod]).waited_for == 1
    served = replace(pod, version=3)
    assert next_step(cluster, group, [served], policy, START) == FinishReplacement(cluster, group)
    assert next_step(cluster, replace(group, replacing=None), [served], policy, START) is None


def test_both_groups_are_replaced_each_with_its_own_report_and_annotations() -> None:
    rollouts, judges = World(1, 1, target="b"), World(1, 1, REWARD_GROUP, target="b")
    body = copy.deepcopy(rollouts.body)
    body["spec"]["workerGroupSpecs"].append(group_of("a", name=REWARD_GROUP))
    facts = replace(rollouts.facts, rolling=(*rollouts.facts.rolling, *judges.facts.rolling))

    def found(cluster: ObservedRayCluster, *served: str) -> tuple[list[Any], str]:
        pods = tuple(
            ObservedPod(name=group, uid=group, attempt=1, group=group, created=START, template="b", address=group,
                        ready=True) for group in (ROLLOUT_GROUP, REWARD_GROUP)
        )  # fmt: skip
        report = TrainerReport(
            attempt=1, at=START, replicas={name: 3 for name in served if name == ROLLOUT_GROUP},
            judges={name: 0 for name in served if name == REWARD_GROUP},
        )  # fmt: skip
        observed = Observation(clusters=(cluster,), pods=pods, report=report)
        steps, _ = find_steps(facts, observed, 1, START)
        value = review_rolling(facts, observed, 1)
        return [(type(step), step.group.name) for step in steps], value.message if value else ""

    steps, said = found(replace(parse_raycluster(body), attempt=1))
    assert steps == [(StartReplacement, ROLLOUT_GROUP), (StartReplacement, REWARD_GROUP)]
    assert said == (
        "0 of 1 rollout pods have the current spec and serve; 0 of 1 reward pods have the current spec and serve"
    )
    annotations: dict[str, str] = {}
    for name in (ROLLOUT_GROUP, REWARD_GROUP):
        cluster = replace(parse_raycluster(body), attempt=1)
        group = cluster.group(name)
        assert group is not None
        patch = change(body, StartReplacement(cluster, group), group_of("b", name=name), START)
        annotations |= patch["metadata"]["annotations"]
        body["metadata"]["annotations"], body["spec"] = annotations, patch["spec"]
    names = [rolling_names(name) for name in (ROLLOUT_GROUP, REWARD_GROUP)]
    assert annotations.keys() == {name for each in names for name in (each.before, each.replacing)}
    both = replace(parse_raycluster(body), attempt=1)
    assert found(both, REWARD_GROUP) == (
        [(FinishReplacement, REWARD_GROUP)],
        "0 of 1 rollout pods have the current spec and serve; 1 of 1 reward pods have the current spec and serve",
    )
    assert found(both, ROLLOUT_GROUP)[0] == [(FinishReplacement, ROLLOUT_GROUP)]


def test_the_worst_of_two_groups_is_the_reason_and_the_message_has_both() -> None:
    cluster = ObservedRayCluster(
        name="c", uid="u", attempt=1, created=START,
        groups=(
            PodGroup(name=ROLLOUT_GROUP, index=1, replicas=1, template="a", refused="b", refusal="no image"),
            PodGroup(name=REWARD_GROUP, index=2, replicas=1, template="b", replacing=START),
        ),
    )  # fmt: skip
    policies = tuple(RollingUpdate(group=name, template="b") for name in (ROLLOUT_GROUP, REWARD_GROUP))
    facts = JobFacts(uid="j", generation=1, created=START, live=True, rolling=policies)
    report = TrainerReport(attempt=1, at=START, replicas={}, judges={})
    found = review_rolling(facts, Observation(clusters=(cluster,), report=report), 1)
    assert found is not None and found.reason == "RollingUpdate"
    assert found.message == "no image; 0 of 1 reward pods have the current spec and serve"
