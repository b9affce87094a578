"""KubeRay as a process next to a control plane."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import KUBERAY, Say, ensure

LOOPBACK = "127.0.0.1"


@contextmanager
def kuberay(plane: ControlPlane, say: Say = print) -> Iterator[None]:
    """KubeRay, which manages RayJobs and RayClusters of the control plane until the context ends.

    Raises:
        ToolMissing: it is not built, and there is no Go.
    """
    tools = ensure((KUBERAY,), say)
    metrics, health = free_ports(2, random.Random())
    for path in sorted((tools.kuberay / "crd" / "bases").glob("*.yaml")):
        plane.kubectl("apply", "--server-side", f"--filename={path}")
    plane.daemons.start(
        "kuberay",
        [
            "env",
            f"KUBECONFIG={plane.kubeconfig}",
            str(tools.path(KUBERAY)),
            "--enable-leader-election=false",
            f"--metrics-addr={LOOPBACK}:{metrics}",
            f"--health-probe-bind-address={LOOPBACK}:{health}",
        ],
    )
    try:
        yield
    finally:
        plane.daemons.stop("kuberay")
