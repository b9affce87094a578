"""The start of a replica that the end of a run finds waiting, on a real Ray."""

from __future__ import annotations

import threading
import time

import pytest

from tests.ml.engine.shared_ray import SharedRay

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def test_a_start_that_waits_for_a_node_ends_when_it_is_given_up() -> None:
    shared = SharedRay()
    shared.begin(())
    try:
        give_up_a_start()
    finally:
        shared.stop()


def give_up_a_start() -> None:
    from ray.util.placement_group import placement_group_table
    from verl.workers.config import HFModelConfig, RolloutConfig

    from verl_omni.trainer.replica_launcher import RayLauncher
    from verl_omni.workers.rollout.vllm_rollout.judge.replica import JudgeReplica

    def make(rank: int) -> JudgeReplica:  # no node has its resource
        model = HFModelConfig.__new__(HFModelConfig)  # it is read when the servers start
        config = RolloutConfig(name="vllm", tensor_model_parallel_size=1)
        return JudgeReplica(rank, config, model, 1, node_resource="omni_judge", ray_resource=None, deadline=60)

    launcher = RayLauncher(make, places=len, requests=lambda _: [], deadline=60)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            launcher.start(3)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    while not (groups := placement_group_table()):
        time.sleep(0.1)
    (group,) = groups.values()
    assert group["name"] == "judge_3:0" and group["state"] == "PENDING" and thread.is_alive()
    launcher.give_up()
    thread.join(30)
    assert not thread.is_alive() and len(errors) == 1
    (group,) = placement_group_table().values()
    assert group["state"] == "REMOVED", "the accelerators are free for others"
