"""A RayCluster whose rollout or reward pods are replaced, with KubeRay and kubelets, in memory."""

import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, rolling_names
from omni_operator.cluster.cache.object_parser import parse_raycluster
from omni_operator.reconcile.pod_replacement import change
from omni_operator.status.decisions.rolling import find_steps
from omni_operator.status.decisions.situation import GiveUpTemplate, ReplacePods
from omni_operator.status.observed.job_facts import JobFacts, RollingUpdate
from omni_operator.status.observed.observation import Attempt, ObservedPod, ObservedRayCluster, PodGroup, TrainerReport

START = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE = timedelta(seconds=100)
BAD = "bad"  # a template whose pods never serve


def group_of(template: str, replicas: int = 1, name: str = ROLLOUT_GROUP) -> dict[str, Any]:
    """A worker group as KubeRay has it; its image is named like its template."""
    containers = [{"name": "ray", "image": template}]
    labels = {rolling_names(name).template: template}
    return {
        "groupName": name,
        "replicas": replicas,
        "resources": {"CPU": "16"},
        "rayStartParams": {"of": template},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
    }


def cluster_of(*groups: PodGroup) -> ObservedRayCluster:
    """A RayCluster with worker groups."""
    return ObservedRayCluster(name="c", uid="u", attempt=1, created=START, groups=groups)


@dataclass
class World:
    """A RayCluster, the pods of one of its groups, KubeRay, kubelets and the trainer's reports, in memory."""

    replicas: int
    most: int
    name: str = ROLLOUT_GROUP
    target: str = "a"
    paused: bool = False

    def __post_init__(self) -> None:
        self.now = START
        self.made = 0
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
        return self.body["spec"]["workerGroupSpecs"][1]

    @property
    def pod_group(self) -> PodGroup:
        return self.cluster.group(self.name)

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
            group=self.name,
            template=self.target,
            most_unavailable=self.most,
            deadline=DEADLINE,
            paused="pause" if self.paused else "",
        )
        return JobFacts(uid="j", generation=1, created=START, rolling=(rolling,))

    @property
    def attempt(self) -> Attempt:
        reported = {"judges" if self.name == REWARD_GROUP else "replicas": dict(self.versions)}
        report = TrainerReport(attempt=1, at=self.now, **reported)
        return Attempt(number=1, cluster=self.cluster, pods=tuple(self.pods.values()), report=report)

    def kuberay(self) -> None:
        """Deletes named pods, and counts all others, also those that are being deleted, as in 1.6.2."""
        named = self.group.get("scaleStrategy", {}).get("workersToDelete", [])
        for name in [name for name in named if name in self.pods]:
            self.delete(name)
        counted = [name for name in self.pods if name not in named]
        for _ in range(self.replicas - len(counted)):
            self.made += 1
            name = f"pod-{self.made}"
            template = self.wanted
            self.pods[name] = ObservedPod(
                name=name,
                uid=name,
                attempt=1,
                group=self.name,
                created=self.now,
                template=template,
                address=f"10.0.0.{self.made}",
            )

    def scale(self, replicas: int) -> None:
        self.replicas = self.group["replicas"] = replicas

    def find_no_node(self, name: str) -> None:
        if not self.pods[name].ready:
            self.pods[name] = replace(self.pods[name], unschedulable="0/3 nodes are available")

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
            self.pods[name] = replace(pod, ready=True, unschedulable="")
            self.versions[pod.address] = version

    def step(self) -> Any:
        """One pass of the operator, whose invariants are checked."""
        before = self.attempt
        steps, _ = find_steps(self.facts, before, self.now)
        assert len(steps) <= 1
        step = steps[0] if steps else None
        if isinstance(step, ReplacePods):
            self.check(step, before)
        if isinstance(step, GiveUpTemplate):
            current = [pod for pod in before.pods if pod.template == self.pod_group.template and not pod.deleting]
            late = [pod for pod in current if not pod.unschedulable and self.now >= pod.created + DEADLINE]
            served = {pod.name for pod in current if pod.address in self.versions}
            assert not served - set(self.pod_group.removed) or {pod.name for pod in late} - served, "pods that serve"
        if step is not None:
            patch = change(self.body, step, group_of(self.target, name=self.name), self.now)
            annotations = {**self.body["metadata"].get("annotations", {}), **patch["metadata"]["annotations"]}
            self.body["metadata"]["annotations"] = {name: text for name, text in annotations.items() if text}
            self.body["spec"] = copy.deepcopy(patch["spec"])
        return step

    def check(self, step: ReplacePods, before: Attempt) -> None:
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
