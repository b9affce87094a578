"""A simulated job with rollout pods of their own, and its Kueue queue."""

from typing import Any

from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, WORKLOADS
from omni_operator.status.decisions.timeouts import Timeouts

KEY = ("team-a", "red")
RAYJOB = "red-a01"
CLUSTER = "red-a01-x1"
NO_ROOM = "couldn't assign flavors to pod set rollout: insufficient unused quota"
QUEUED = {"placement": "Separate", "replicas": 4, "minReplicas": 2}
ROLLOUT = {"placement": "Separate", "replicas": 3, "minReplicas": 2}
PLACES = {"rollout": 1, "reward": 2}  # of the worker groups of both pools
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


def unscheduled(message: str) -> dict[str, Any]:
    """Status of a pod that finds no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def waits(reason: str, message: str) -> dict[str, Any]:
    """Status of a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "ray-worker", "state": state}]}


def spec_of(pool: str, **changed: Any) -> dict[str, Any]:
    """The parts of a spec with three rollout and three reward pods, one of which has other fields."""
    model = {"base": "org/judge", "placement": "Separate", "replicas": 3}
    reward = {"scorers": [{"name": "judged", "builtin": "genrm_ocr"}], "model": model}
    if pool == "rollout":
        return {"rollout": {**ROLLOUT, **changed}, "reward": reward}
    return {"rollout": ROLLOUT, "reward": {**reward, "model": {**model, **changed}}}


class Pools:
    """KubeRay and kubelets for the worker groups of a job with rollout pods."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation
        self.made = 0

    async def run(self, **job: Any) -> None:
        """A job whose first attempt runs, all pods ready."""
        await self.simulation.submit_and_settle(**{"rollout": ROLLOUT, **job})
        self.simulation.run(1)
        rayjob = self.simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")
        self.simulation.change(RAYCLUSTERS, spec=rayjob["spec"]["rayClusterSpec"])
        self.add("trainer")
        for _ in range(ROLLOUT["replicas"]):
            self.add("rollout")
        await self.simulation.settle()

    async def run_both(self, **job: Any) -> list[str]:
        """Such a job with three reward pods too, all of which have reported; the names of these."""
        await self.run(**{**spec_of("reward"), **job})
        names = [self.add("reward") for _ in range(3)]
        await self.report()
        return names

    def add(self, group: str, status: Any = READY) -> str:
        """KubeRay makes a pod, and it becomes ready."""
        raycluster = self.simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
        groups = {spec["groupName"]: spec for spec in raycluster["spec"]["workerGroupSpecs"]}
        template = groups[group]["template"]["metadata"]["labels"] if group in groups else {}
        labels = {**template, "ray.io/node-type": "worker", "ray.io/group": group}
        self.made += 1
        name = f"{CLUSTER}-{group}-{self.made}"
        status = {**status, "podIP": f"10.0.0.{self.made}"}
        self.simulation.cluster.make_owned(PODS, name, raycluster, labels, status=status)
        return name

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
            f"{group}/replica_versions": versions
            for group, versions in serving.items()
            if versions or group == "rollout"
        }
        await self.simulation.report_and_settle("heartbeat", **reported)

    def replace_named(self, group: str = "rollout", status: Any = READY) -> list[str]:
        """KubeRay deletes the pods of a group that are named, and starts others; the names."""
        present = {body["metadata"]["name"] for body in self.simulation.cluster.all(PODS)}
        (strategy,) = (spec.get("scaleStrategy", {}) for spec in self.specs() if spec["groupName"] == group)
        named = [name for name in strategy.get("workersToDelete", ()) if name in present]
        for name in named:
            self.simulation.cluster.remove(PODS, KEY[0], name)
            self.add(group, status)
        return named

    def groups(self) -> list[tuple[str, int]]:
        return [(group["groupName"], group["replicas"]) for group in self.specs()]

    def specs(self) -> list[dict[str, Any]]:
        """The worker groups of the RayCluster."""
        return self.simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]["workerGroupSpecs"]

    def change(self, index: int, **changed: Any) -> None:
        """Another program changes a worker group of the RayCluster."""
        groups = self.specs()
        groups[index] |= changed
        metadata = {"managedFields": [{"manager": "helm", "operation": "Update", "time": "2026-01-01T00:00:00Z"}]}
        self.simulation.change(RAYCLUSTERS, spec={"workerGroupSpecs": groups}, metadata=metadata)

    def leaving(self, group: int = 1) -> list[str]:
        """Names of the pods of a group that KubeRay is to delete."""
        return self.specs()[group]["scaleStrategy"]["workersToDelete"]

    def patches(self) -> int:
        return int(self.simulation.cluster.log.count(("patch", "rayclusters")))

    def events(self, reason: str) -> list[str]:
        return [str(event["note"]) for event in self.simulation.events() if event["reason"] == reason]


class Queue:
    """The queue of a job with one attempt."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation

    async def submit(self, annotations: dict[str, str] | None = None, **job: Any) -> None:
        """A job whose first attempt has been tried, and waits."""
        self.simulation.submit(**{"rollout": QUEUED, **job})
        labels = {"kueue.x-k8s.io/queue-name": "team-a"}
        self.simulation.cluster.change(JOBS, *KEY, metadata={"labels": labels, "annotations": annotations or {}})
        await self.simulation.settle()
        self.simulation.change(RAYJOBS, spec={"suspend": True})
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
        self.simulation.change(RAYJOBS, status={"jobDeploymentStatus": "Suspended"})
        condition = {"type": "QuotaReserved", "status": reserved, "reason": reason, "message": message}
        self.simulation.cluster.change(
            WORKLOADS, KEY[0], f"rayjob-{RAYJOB}", status={"conditions": [condition] if reason else []}
        )

    async def admit(self) -> None:
        """Kueue admits the RayJob, and its pods start."""
        self.wait("True", "QuotaReserved")
        self.simulation.change(RAYJOBS, spec={"suspend": False})
        await self.simulation.run_and_settle(1)

    async def preempt(self) -> None:
        """Kueue takes the quota back, and KubeRay deletes the pods."""
        self.simulation.change(RAYJOBS, spec={"suspend": True})
        self.simulation.cluster.remove(RAYCLUSTERS, KEY[0], f"{RAYJOB}-x1")
        self.wait(message="Preempted to accommodate a workload")
        await self.simulation.settle()

    def rayjob(self, name: str = RAYJOB) -> dict[str, Any]:
        return self.simulation.cluster.get(RAYJOBS, KEY[0], name)

    def asked(self, name: str = RAYJOB) -> int:
        """Rollout pods that the RayJob asks for."""
        groups = self.rayjob(name)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        (number,) = {groups[1][part] for part in ("replicas", "minReplicas", "maxReplicas")}
        return int(number)
