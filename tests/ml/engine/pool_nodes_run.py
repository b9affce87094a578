"""`main_diffusion` on a Ray cluster with a node for each pod: `pool_nodes_run.py PLACES GROUPS name=value ...`.

GROUPS is a JSON list of the nodes' Ray resources. Where the workers run is written to the file PLACES, as JSON.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

# Before Ray is imported, as KubeRay sets them in every pod.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}


def main() -> int:
    """Start the nodes, and run the training job on them."""
    places, groups, *settings = sys.argv[1:]
    from ray.cluster_utils import Cluster

    from verl_omni.trainer import main_diffusion, startup

    start = startup.start_actors

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        replicas = [worker for replica in stack.weights.replicas for worker in (*replica.workers, *replica.servers)]
        found = {"trainer": pools_of(stack.workers.workers), "rollout": pools_of(replicas)}
        Path(places).write_text(json.dumps(found), encoding="utf-8")
        return stack

    startup.start_actors = starting
    # Not 127.0.0.1, which ray.init replaces by the machine's own address, where these nodes do not listen.
    address = {"node_ip_address": "127.0.0.2"}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **address}
    )
    try:
        for resources in json.loads(groups):
            cpus, gpus = resources.pop("CPU"), resources.pop("GPU")
            cluster.add_node(num_cpus=cpus, num_gpus=gpus, resources=resources, **address)
        sys.argv[1:] = [*settings, f"ray_kwargs.ray_init.address='{cluster.address}'"]
        return main_diffusion.main()
    finally:
        import ray

        ray.shutdown()  # the driver joined the cluster, which refuses to lose the node of a driver
        cluster.shutdown()


def pools_of(actors: list[Any]) -> list[str]:
    """The pool of the node that each actor runs on."""
    import ray

    nodes = {
        node["NodeID"]: next((name for name in node["Resources"] if name.startswith("omni_")), "none")
        for node in ray.nodes()
    }
    asked = [actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in actors]
    return [nodes[found] for found in ray.get(asked, timeout=60)]


if __name__ == "__main__":
    sys.exit(main())
