"""`main_diffusion` on a Ray cluster with a node for each pod: `pool_nodes_run.py PLACES GROUPS name=value ...`.

GROUPS is a JSON list of the nodes' Ray resources; the last is a rollout node. It is killed while version 1 generates,
and another one like it joins before version 2 is sent. The other rollout node is drained while version 2 generates, as
the hook of a pod that is deleted does. Workers are forks of this process as it is before it imports Ray. Written to
the file PLACES, as JSON: where workers run at the start and at the end, and whether the drained node has ended by
itself.
"""

import json
import os
import secrets
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Not 127.0.0.1, which ray.init replaces by the machine's own address, where these nodes do not listen.
ADDRESS = {"node_ip_address": "127.0.0.2"}
VERSION_OF_LOSS = 1
VERSION_OF_DRAINING = 2
# Before Ray is imported, as KubeRay sets them in every pod.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}


def main() -> int:
    """Start the nodes, and run the training job on them."""
    places, resources_of_groups, *settings = sys.argv[1:]
    groups = json.loads(resources_of_groups)
    from verl_omni.platforms.cpu.fork_server import client, head
    from verl_omni.platforms.cpu.fork_server.cluster import server_name, start_server

    os.environ[client.SERVER] = server_name()
    # Its forks import Ray themselves: each reads variables that its own node has set.
    server, alive = start_server(os.environ[client.SERVER])
    head.start_workers_with_client()
    import ray
    from ray.cluster_utils import Cluster

    from verl_omni.trainer import main_diffusion, startup

    start = startup.start_actors
    pools = []
    nodes = []
    drained = []

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        update = stack.weights.update_weights
        generate = stack.agent_loop.generate_sequences
        join = stack.weights.join
        joined = threading.Event()

        def updating(global_steps: int) -> None:
            if global_steps == VERSION_OF_LOSS + 1:
                nodes.append(add_node(cluster, groups[-1]))
                assert joined.wait(180), "no replica was started on the new node"
            update(global_steps=global_steps)
            assert stack.agent_loop.queued_samples(60) == 0, "a sample is counted after its generation"
            if global_steps in (0, VERSION_OF_LOSS + 1):
                pools.append(places_of(stack))

        def generating(prompts: Any) -> Any:
            version = prompts.meta_info["global_steps"]
            if version == VERSION_OF_DRAINING and len(drained) == 0:
                with ThreadPoolExecutor(1) as pool:
                    draining = pool.submit(drain, cluster, nodes[1].node_id)
                    generated = generate(prompts)
                    drained.append(draining.result())
                return generated
            if version != VERSION_OF_LOSS or len(nodes) > len(groups):
                return generate(prompts)
            with ThreadPoolExecutor(1) as pool:
                killing = pool.submit(cluster.remove_node, nodes[-1], allow_graceful=False)
                generated = generate(prompts)
                killing.result()
            return generated

        def joining(replica: Any, times: Any) -> None:
            join(replica, times)
            joined.set()

        stack.weights.update_weights = updating
        stack.agent_loop.generate_sequences = generating
        stack.weights.join = joining
        return stack

    startup.start_actors = starting
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **ADDRESS}
    )
    try:
        nodes += [add_node(cluster, resources) for resources in groups]
        sys.argv[1:] = [*settings, f"ray_kwargs.ray_init.address='{cluster.address}'"]
        code = main_diffusion.main()
        Path(places).write_text(json.dumps({"pools": pools, "drained": drained}), encoding="utf-8")
        return code
    finally:
        ray.shutdown()  # the driver joined the cluster, which refuses to lose the node of a driver
        cluster.shutdown()
        os.close(alive)
        os.waitpid(server, 0)


def add_node(cluster: Any, resources: dict[str, float]) -> Any:
    """Start a node, as KubeRay does a pod."""
    custom_resources = dict(resources)
    cpus = custom_resources.pop("CPU")
    gpus = custom_resources.pop("GPU", 0)
    return cluster.add_node(num_cpus=cpus, num_gpus=gpus, resources=custom_resources, **ADDRESS)


def drain(cluster: Any, node_id: str) -> bool:
    """Drain a node. Returns whether it has ended."""
    import ray

    from verl_omni.utils import drain_node

    return drain_node.drain(ray._raylet.GcsClient(address=cluster.address), node_id, 120)


def places_of(stack: Any) -> dict[str, list[str]]:
    """The pools that the actors of a run are in."""
    replicas = [actor for replica in stack.weights.replicas for actor in (*replica.workers, *replica.servers)]
    others = [*stack.agent_loop.agent_loop_workers, stack.servers.global_load_balancer]
    return {"trainer": pools_of([*stack.workers.workers, *others]), "rollout": pools_of(replicas)}


def pools_of(actors: list[Any]) -> list[str]:
    """The pool of the node that each actor runs on."""
    import ray

    nodes = {
        node["NodeID"]: next((name for name in node["Resources"] if name.startswith("omni_")), "none")
        for node in ray.nodes()
    }
    asked = [actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in actors]
    return [nodes[node_id] for node_id in ray.get(asked, timeout=60)]


if __name__ == "__main__":
    sys.exit(main())
