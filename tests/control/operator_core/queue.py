"""Kueue for a simulated job, as far as the operator sees it: the RayJob is suspended, and its Workload waits."""

from __future__ import annotations

from typing import Any

from omni_operator.cluster.kinds import JOBS, RAYCLUSTERS, RAYJOBS, WORKLOADS

KEY = ("team-a", "red")
RAYJOB = "red-a01"
NO_ROOM = "couldn't assign flavors to pod set rollout: insufficient unused quota"
ROLLOUT = {"placement": "Separate", "replicas": 4, "minReplicas": 2}


class Queue:
    """The queue of a job with one attempt."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation

    async def submit(self, annotations: dict[str, str] | None = None, **job: Any) -> None:
        """A job whose first attempt has been tried, and waits."""
        self.simulation.submit(**{"rollout": ROLLOUT, **job})
        labels = {"kueue.x-k8s.io/queue-name": "team-a"}
        self.simulation.cluster.change(JOBS, *KEY, metadata={"labels": labels, "annotations": annotations or {}})
        await self.simulation.settle()
        self.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, spec={"suspend": True})
        self.make_workload()
        self.wait()
        await self.simulation.settle()

    def make_workload(self) -> None:
        """Kueue makes the Workload of the RayJob."""
        uid = self.rayjob()["metadata"]["uid"]
        meta = {"namespace": KEY[0], "name": f"rayjob-{RAYJOB}", "labels": {"kueue.x-k8s.io/job-uid": uid}}
        self.simulation.cluster.make(
            {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind, "metadata": meta, "spec": {}}
        )

    def wait(self, reserved: str = "False", reason: str = "Pending", message: str = NO_ROOM) -> None:
        """KubeRay has deleted the pods, and Kueue's Workload has this condition."""
        self.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, status={"jobDeploymentStatus": "Suspended"})
        condition = {"type": "QuotaReserved", "status": reserved, "reason": reason, "message": message}
        self.simulation.cluster.change(
            WORKLOADS, KEY[0], f"rayjob-{RAYJOB}", status={"conditions": [condition] if reason else []}
        )

    async def admit(self) -> None:
        """Kueue admits the RayJob, and its pods start."""
        self.wait("True", "QuotaReserved")
        self.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, spec={"suspend": False})
        self.simulation.run(1)
        await self.simulation.settle()

    async def preempt(self) -> None:
        """Kueue takes the quota back, and KubeRay deletes the pods."""
        self.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, spec={"suspend": True})
        self.simulation.cluster.remove(RAYCLUSTERS, KEY[0], f"{RAYJOB}-x1")
        self.wait(message="Preempted to accommodate a workload")
        await self.simulation.settle()

    def rayjob(self, name: str = RAYJOB) -> dict[str, Any]:
        found: dict[str, Any] = self.simulation.cluster.get(RAYJOBS, KEY[0], name)
        return found

    def asked(self, name: str = RAYJOB) -> int:
        """Rollout pods that the RayJob asks for."""
        groups = self.rayjob(name)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        (number,) = {groups[1][part] for part in ("replicas", "minReplicas", "maxReplicas")}
        return int(number)
