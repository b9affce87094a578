"""Drains the Ray node of this pod: `python3 -m verl_omni.utils.drain_node SECONDS`, the preStop hook of rollout pods.

The trainer sends no more samples to the replicas of a draining node, and stops each when it has finished those that it
has. Ray then ends the node, and with it the container. The program ends with the node, after `SECONDS`, or when Ray's
head is gone, as when the whole job is deleted.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 1.0
# Ray's client ends this process when it cannot reach the head for so long.
HEAD_SECONDS = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}


def drain(
    head: Any,
    node_id: str,
    seconds: float,
    *,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Drain a node, and wait until it is gone. Returns whether it is.

    Args:
        head: Ray's `GcsClient`.
        node_id: hexadecimal.
    """
    from ray.core.generated import autoscaler_pb2

    latest = clock() + seconds
    accepted, why = head.drain_node(
        node_id,
        autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        "its pod is being deleted",
        int(latest * 1000),
    )
    if not accepted:
        raise RuntimeError(f"Ray does not drain the node {node_id}: {why}")
    while node_id in alive(head):
        if clock() >= latest:
            return False
        pause(POLL_SECONDS)
    return True


def alive(head: Any) -> dict[str, str]:
    """Ids of the nodes that are alive, with the name of the host of each."""
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    nodes = head.get_all_node_info().items()
    return {
        key.hex(): node.node_manager_hostname for key, node in nodes if node.state == GcsNodeInfo.GcsNodeState.ALIVE
    }


def main() -> int:
    """Drain the node of this pod, which is named after the host. Returns the exit code."""
    seconds = float(sys.argv[1])
    os.environ |= HEAD_SECONDS  # before Ray is imported
    import ray

    head = ray._raylet.GcsClient(address=os.environ["RAY_ADDRESS"])
    node_ids = [node for node, host in alive(head).items() if host == socket.gethostname()]
    return 0 if node_ids and drain(head, node_ids[0], seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
