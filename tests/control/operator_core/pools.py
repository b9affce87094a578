"""A simulated job with rollout pods of their own."""

from __future__ import annotations

from typing import Any

from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS

KEY = ("team-a", "red")
CLUSTER = "red-a01-x1"
ROLLOUT = {"placement": "Separate", "replicas": 3, "minReplicas": 2}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


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
