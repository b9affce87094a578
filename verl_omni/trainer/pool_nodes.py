"""Nodes of the Ray cluster that the pools of a run are pinned to."""

from __future__ import annotations

import time
from collections.abc import Callable

from omegaconf import DictConfig

from verl_omni.trainer import pools

NODE_POLL_SECONDS = 5.0


def wait_for_nodes(config: DictConfig, report_phase: Callable[[str], None]) -> None:
    """Wait until the Ray cluster has the nodes that the pools are pinned to: those of a pool may join late.

    Raises:
        ValueError: no node has one of the resources within `rollout.deadline_seconds`.
    """
    import ray

    wanted, deadline = pools.resources(config), config.actor_rollout_ref.rollout.deadline_seconds
    latest = time.monotonic() + deadline
    while missing := sorted(wanted.keys() - ray.cluster_resources().keys()):
        if time.monotonic() > latest:
            raise ValueError(
                f"{wanted[missing[0]]}: no node of the Ray cluster has the resource {missing[0]} after {deadline:g} s; "
                f"start the nodes of this pool with --resources='{{\"{missing[0]}\": 1}}'"
            )
        report_phase(f"waiting for nodes with the Ray resource {' and '.join(missing)}")
        time.sleep(NODE_POLL_SECONDS)
