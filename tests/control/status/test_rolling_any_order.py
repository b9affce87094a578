"""Replacement of rollout and reward pods, in any order of events."""

from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.status.decisions.rolling import review_rolling
from tests.control.status.rolled_pods import BAD, World


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

    @rule(more=st.integers(1, 3))
    def more_pods_are_asked_for(self, more: int) -> None:
        self.world.scale(min(8, self.world.replicas + more))

    @rule(draw=st.integers(0, 9))
    def a_pod_finds_no_node(self, draw: int) -> None:
        if self.world.pods:
            self.world.find_no_node(sorted(self.world.pods)[draw % len(self.world.pods)])

    @rule(seconds=st.sampled_from([1, 60, 200]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule()
    def the_operator_passes(self) -> None:
        assert not (self.world.step() and self.world.paused)

    @invariant()
    def the_condition_is_true_only_when_all_pods_have_the_spec(self) -> None:
        if hasattr(self, "world") and review_rolling(self.world.facts, self.world.attempt) is None:
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
        review = review_rolling(world.facts, world.attempt)
        if world.target == BAD:
            assert served <= {"a", "b", "c"} and len(served) == 1
            assert review is not None and (review.status, review.reason) == ("False", "RolledBack")
        elif review is None:
            assert served == {world.target}
        else:  # nothing served in its time, so it was given up; another one is served meanwhile
            assert review.reason == "RolledBack" and len(served) == 1
        assert {container["image"] for container in world.group["template"]["spec"]["containers"]} == served
        assert {world.group["rayStartParams"]["of"]} == served, "what belongs to a template changes with it"


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAnyOrder = pytest.mark.slow(AnyOrder.TestCase)
