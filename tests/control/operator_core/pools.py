"""A simulated job with rollout pods of their own."""

from __future__ import annotations

from typing import Any

from omni_operator.cluster.kinds import PODS, RAYCLUSTERS, RAYJOBS
from omni_operator.status.decisions.timeouts import Timeouts

KEY = ("team-a", "red")
CLUSTER = "red-a01-x1"
ROLLOUT = {"placement": "Separate", "replicas": 3, "minReplicas": 2}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
# A pod whose container was killed for memory, and restarted as often as one attempt allows.
FAILING = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "ray",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": ""}},
            "restartCount": Timeouts().restarts,
        }
    ],
}


class Pools:
    """KubeRay and kubelets for the two groups of a job with rollout pods."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation
        self.made = 0

    async def run(self, **job: Any) -> None:
        """A job whose first attempt runs, all pods ready."""
        self.simulation.submit(**{"rollout": ROLLOUT, **job})
        await self.simulation.settle()
        self.simulation.run(1)
        rayjob = self.simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")
        self.simulation.cluster.change(RAYCLUSTERS, KEY[0], CLUSTER, spec=rayjob["spec"]["rayClusterSpec"])
        self.add("trainer")
        for _ in range(ROLLOUT["replicas"]):  # type: ignore[arg-type]
            self.add("rollout")
        await self.simulation.settle()

    def add(self, group: str, status: Any = READY) -> str:
        """KubeRay makes a pod, and it becomes ready."""
        cluster = self.simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
        owner = {"kind": "RayCluster", "name": CLUSTER, "uid": cluster["metadata"]["uid"], "controller": True}
        groups = {found["groupName"]: found for found in cluster["spec"]["workerGroupSpecs"]}
        template = groups[group]["template"]["metadata"]["labels"] if group in groups else {}
        labels = {**template, **cluster["metadata"]["labels"], "ray.io/node-type": "worker", "ray.io/group": group}
        self.made += 1
        status = {**status, "podIP": f"10.0.0.{self.made}"}
        meta = {"namespace": KEY[0], "name": f"{CLUSTER}-{group}-{self.made}", "labels": labels}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "ownerReferences": [owner]}, "status": status}
        return str(self.simulation.cluster.make(body)["metadata"]["name"])

    async def report(self, version: int = 1, **others: int) -> None:
        """The trainer reports the replicas in all ready pods, and the operator makes its passes.

        Args:
            version: weight version of the replicas in rollout pods; a judge's is 0.
            others: by the address of a rollout pod, those with another version.
        """
        serving: dict[str, dict[str, int]] = {"rollout": {}, "reward": {}}
        for body in self.simulation.cluster.all(PODS):
            group = body["metadata"]["labels"].get("ray.io/group")
            if group in serving and body["status"].get("conditions") == READY["conditions"]:
                serving[group][body["status"]["podIP"]] = version if group == "rollout" else 0
        serving["rollout"] |= others
        reported = {
            f"{group}/replica_versions": found for group, found in serving.items() if found or group == "rollout"
        }
        self.simulation.report("heartbeat", **reported)
        await self.simulation.settle()

    def replace_named(self, group: str = "rollout", status: Any = READY) -> list[str]:
        """KubeRay deletes the pods of a group that are named, and starts others; the names."""
        there = {body["metadata"]["name"] for body in self.simulation.cluster.all(PODS)}
        groups = self.simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]["workerGroupSpecs"]
        (strategy,) = (found.get("scaleStrategy", {}) for found in groups if found["groupName"] == group)
        named = [name for name in strategy.get("workersToDelete", ()) if name in there]
        for name in named:
            self.simulation.cluster.remove(PODS, KEY[0], name)
            self.add(group, status)
        return named

    def groups(self) -> list[tuple[str, int]]:
        body = self.simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
        return [(group["groupName"], group["replicas"]) for group in body["spec"]["workerGroupSpecs"]]

    def leaving(self, group: int = 1) -> list[str]:
        """Names of the pods of a group that KubeRay is to delete."""
        body = self.simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
        found: list[str] = body["spec"]["workerGroupSpecs"][group]["scaleStrategy"]["workersToDelete"]
        return found

    def patches(self) -> int:
        return int(self.simulation.cluster.log.count(("patch", "rayclusters")))

    def events(self, reason: str) -> list[str]:
        return [str(event["note"]) for event in self.simulation.events() if event["reason"] == reason]
