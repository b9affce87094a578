"""The complete system on a cluster, as users install it: our images, KubeRay, our chart, and volumes for runs."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import helm
from e2e.cluster import deadlines
from e2e.cluster.paths import cache
from e2e.cluster.provider import NODES, Cluster, NodeSpec
from e2e.cluster.tools import Say
from e2e.images.build import Built, build
from e2e.images.builders import choose
from e2e.images.catalog import OPERATOR, ROLLOUT_CPU

NAMESPACE = "omni-system"
RELEASE = "omni"
RUNS_SIZE = "20Gi"  # a claim has to say one; a folder of this machine knows no limit


@dataclass(frozen=True, slots=True)
class System:
    """A cluster with the operator on it.

    Attributes:
        rollout: the image that jobs run.
    """

    cluster: Cluster
    kubeconfig: Path
    helm: Path
    operator: Built
    rollout: Built

    def install(self, *options: str) -> str:
        """Install the chart, or upgrade it to these options, and wait until its operator is ready; Helm's output."""
        repository, _, tag = self.operator.name.rpartition(":")
        return self.run_helm(
            "upgrade",
            "--install",
            RELEASE,
            str(helm.CHART),
            "--create-namespace",
            "--wait",
            f"--timeout={deadlines.ADDONS_READY:g}s",
            f"--set=image.repository={repository},image.tag={tag}",
            f"--set=jobs.image={self.rollout.name}",
            *options,
        )

    def run_helm(self, *arguments: str) -> str:
        """What Helm prints."""
        command = [*arguments, f"--namespace={NAMESPACE}"]
        return helm.on_cluster(self.helm, self.kubeconfig, command, deadlines.ADDONS_READY)

    def claim(self, namespace: str, name: str) -> Path:
        """Make a claim whose volume is a folder of this machine, unless it is there, and return the folder."""
        return claim(self.cluster, namespace, name)


def claim(cluster: Cluster, namespace: str, name: str) -> Path:
    """Make a claim whose volume is a folder of this machine, unless it is there, and return the folder."""
    folder = cluster.volumes / namespace / name
    volume_name = f"{namespace}-{name}"
    existing = ("persistentvolumeclaim", name, f"--namespace={namespace}", "--ignore-not-found", "--output=name")
    if not cluster.kubectl("get", *existing):
        # Delete the volume of an earlier claim of this name (a test that ran before): no new claim can bind to it.
        cluster.kubectl("delete", "persistentvolume", volume_name, "--ignore-not-found")
        if folder.exists():
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # a volume of this kind is not given to the pod's group
    for body in volume(namespace, name, volume_name, folder):
        cluster.kubectl("apply", "--server-side", "--filename=-", text=json.dumps(body))
    # The scheduler looks again at a pod that came before the binding only after 5 minutes.
    bound = ("--for=jsonpath={.status.phase}=Bound", f"persistentvolumeclaim/{name}", "--timeout=60s")
    cluster.kubectl("wait", f"--namespace={namespace}", *bound)
    return folder


def volume(namespace: str, name: str, volume_name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A folder as a volume, and the claim that it is for. Bound by name, so that no provisioner is asked. PURE."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": RUNS_SIZE}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume_name},
            "spec": {
                **common,
                "capacity": size,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**common, "resources": {"requests": size}, "volumeName": volume_name},
        },
    )


def images(say: Say) -> tuple[Built, Built]:
    """The images of operator and training, of the working tree as it is now.

    Raises:
        ToolMissing: nothing here builds images, or the disk has no room.
        BuildFailed: a step failed.
    """
    kept = cache() / "archives"
    builder = choose(kept / "buildah", say)
    return build(OPERATOR, builder, kept, say), build(ROLLOUT_CPU, builder, kept, say)


def bring_up(cluster: Cluster, say: Say, nodes: Sequence[NodeSpec] = NODES) -> System:
    """Build missing images, start the cluster unless it is running, and install the operator.

    Raises:
        ToolMissing: this machine lacks a program, a right or room.
        ClusterError: a part does not come up.
    """
    operator, rollout = images(say)
    program = helm.helm(say)
    kubeconfig = cluster.create(nodes, [operator.image, rollout.image])
    system = System(cluster, kubeconfig, program, operator, rollout)
    say("installing the operator")
    system.install()
    return system
