"""Nodes of the Ray cluster that the pools of a run are pinned to."""

import time
from collections.abc import Callable

from omegaconf import DictConfig

from verl_omni.trainer.settings import pool_settings

NODE_POLL_SECONDS = 5.0
OTHERS_SECONDS = 120.0  # for another node, once there is room for the replicas that the run needs


def wait_for_nodes(config: DictConfig, report_phase: Callable[[str], None]) -> None:
    """Wait until the Ray cluster has the nodes that the pools are pinned to; they may join late.

    Raises:
        ValueError: no node has one of the resources within `rollout.deadline_seconds`.
    """
    import ray

    wanted = pool_settings.resources(config)
    deadline = config.actor_rollout_ref.rollout.deadline_seconds
    latest = time.monotonic() + deadline
    while missing := sorted(wanted.keys() - ray.cluster_resources().keys()):
        if time.monotonic() > latest:
            raise ValueError(
                f"{wanted[missing[0]]}: no node of the Ray cluster has the resource {missing[0]} after {deadline:g} s; "
                f"start the nodes of this pool with --resources='{{\"{missing[0]}\": 1}}'"
            )
        report_phase(f"waiting for nodes with the Ray resource {' and '.join(missing)}")
        time.sleep(NODE_POLL_SECONDS)
    rollout = config.actor_rollout_ref.rollout
    if rollout.nnodes > 0 and rollout.node_resource is not None:
        _wait_for_replicas(rollout, latest, report_phase)


def _wait_for_replicas(rollout: DictConfig, latest: float, report_phase: Callable[[str], None]) -> None:
    """Wait for the nodes of all standalone replicas.

    `rollout.min_replicas` replicas are enough after `latest`, or when no other node has joined for `OTHERS_SECONDS`.

    The settings are then changed to the number of replicas that fit, with one node per replica, because the present
    nodes may have fewer accelerators than `rollout.n_gpus_per_node`. More nodes may join later.

    Raises:
        ValueError: there is no room for `rollout.min_replicas` replicas.
    """
    import ray
    from verl.utils.device import get_resource_name

    wanted = pool_settings.replicas(rollout)
    accelerator = get_resource_name()
    reported = -1
    since = 0.0
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = pool_settings.room(rollout, nodes, accelerator)
        if room >= wanted:
            return
        if room > reported:
            since = time.monotonic()
        late = time.monotonic() > latest
        enough = room >= rollout.min_replicas
        if late or (enough and time.monotonic() > since + OTHERS_SECONDS):
            if not enough:
                raise ValueError(
                    f"{pool_settings.ROLLOUT}.node_resource: after {rollout.deadline_seconds:g} s, the nodes with the "
                    f"resource {rollout.node_resource} have room for {room} replicas, and rollout.min_replicas is "
                    f"{rollout.min_replicas}"
                )
            report_phase(f"starting with the nodes of {room} rollout replicas of {wanted}; others may join later")
            rollout.nnodes = room
            rollout.n_gpus_per_node = pool_settings.replica_size(rollout)
            return
        if room != reported:
            report_phase(f"waiting for the nodes of {wanted} rollout replicas: {room} are there")
            reported = room
        time.sleep(NODE_POLL_SECONDS)
