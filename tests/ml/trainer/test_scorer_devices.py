"""A scorer with a device: its reward workers reserve accelerators in Ray, or the run is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from verl_omni.trainer import scorer_devices, settings

MODEL = Path(__file__).parents[3] / "examples" / "shapes-sd3"
REQUIRED = ["data.train_files=t", f"actor_rollout_ref.model.path={MODEL}", "trainer.total_training_steps=1"]
SEVERAL = "reward.reward_manager.name=MultiVisualRewardManager"
SCORER = """
import os
import ray


def compute_score(data_source, solution_image, ground_truth, extra_info, device):
    number = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return {"score": 0.0, "device": device, "reserved": ",".join(number), "seen": os.environ["CUDA_VISIBLE_DEVICES"]}
"""


def load(*overrides: str) -> Any:
    return settings.load([*REQUIRED, "reward.num_workers=2", *overrides])


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ([], 0),
        (["reward.scorer_kwargs.device=cpu"], 0),
        (["reward.scorer_kwargs.device=cuda"], 1),
        (["reward.scorer_kwargs.device=npu:0"], 1),
        ([SEVERAL, "reward.reward_functions={a: {device: cpu}, b: {device: 'cuda:2'}, c: {device: 'cuda:0'}}"], 3),
    ],
)
def test_a_reward_worker_reserves_as_many_accelerators_as_its_devices_number(overrides: list[str], count: int) -> None:
    reward = load(*overrides).reward
    assert scorer_devices.per_worker(reward) == count and scorer_devices.wanted(reward) == 2 * count
    if count:
        gpu = scorer_devices.worker_options(reward, "GPU", None)
        assert gpu == {"num_cpus": 0, "num_gpus": count, "resources": {}}
        npu = scorer_devices.worker_options(reward, "NPU", "pool")
        assert npu == {"num_cpus": 0, "resources": {"pool": 1e-4, "NPU": count}}


@pytest.mark.parametrize(
    ("there", "trainer", "rollout", "enough"),
    [
        ([8], (1, 6), (0, 8), True),
        ([8], (1, 7), (0, 8), False),
        ([4, 4], (2, 3), (0, 8), True),
        ([4, 4], (1, 1), (1, 6), False),
        ([4, 4, 1], (1, 1), (1, 6), True),
    ],
)
def test_a_run_without_free_accelerators_is_refused(
    there: list[int], trainer: tuple[int, int], rollout: tuple[int, int], enough: bool
) -> None:
    nodes = [{"CPU": 8.0, "GPU": float(count)} for count in there]
    config = load()
    config.trainer.nnodes, config.trainer.n_gpus_per_node = trainer
    config.actor_rollout_ref.rollout.nnodes, config.actor_rollout_ref.rollout.n_gpus_per_node = rollout
    assert scorer_devices.shortage(config, nodes[:0], "GPU") is None, "no scorer asks for one"
    config.reward.scorer_kwargs = {"device": "cuda"}
    said = scorer_devices.shortage(config, nodes, "GPU")
    assert (said is None) == enough
    config.actor_rollout_ref.rollout.ray_resource = "NPU"  # rollout nodes of another vendor take none of them
    assert (scorer_devices.shortage(config, nodes, "GPU") is None) == (sum(there) - math.prod(trainer) >= 2)
    if said is not None:
        begin = (
            f"reward.scorer_kwargs.device: 2 reward workers reserve 1 accelerators each, and of the {sum(there)} that"
        )
        assert said.startswith(begin) and "write cpu" in said


@pytest.fixture
def ray_with_three_gpus() -> Iterator[None]:
    """Logical GPUs of Ray, of which training has taken one."""
    import ray
    from ray.util.placement_group import placement_group

    ray.init(num_cpus=1, num_gpus=3, include_dashboard=False, log_to_driver=False)
    try:
        assert placement_group([{"GPU": 1}]).wait(60)
        yield
    finally:
        ray.shutdown()


@pytest.mark.slow  # starts Ray
@pytest.mark.usefixtures("ray_with_three_gpus")
def test_each_reward_worker_sees_an_accelerator_of_its_own(tmp_path: Path) -> None:
    import ray
    from verl import DataProto

    from verl_omni.trainer.reward_workers import RewardWorkers

    (tmp_path / "mine.py").write_text(SCORER)
    config = load(SEVERAL, f"reward.reward_functions={{mine: {{path: {tmp_path / 'mine.py'}, device: 'cuda:0'}}}}")
    config.actor_rollout_ref.model.tokenizer_path = f"{MODEL}/tokenizer"
    workers = RewardWorkers(config, None).reward_loop_workers
    pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    columns = {"data_source": "d", "reward_model": {"ground_truth": ""}, "extra_info": {}}
    sample = DataProto(
        batch=TensorDict({"prompts": torch.zeros(1, 1), "responses": pixels}, batch_size=1),
        non_tensor_batch={name: np.array([value], dtype=object) for name, value in columns.items()},
    )
    replies = ray.get([worker.compute_score.remote(sample) for worker in workers], timeout=120)
    found = [reply["reward_extra_info"] for reply in replies]
    assert [each["reward/mine/device"] for each in found] == ["cuda:0"] * 2
    assert len({each["reward/mine/reserved"] for each in found}) == 2
    assert all(each["reward/mine/reserved"] == each["reward/mine/seen"] for each in found)
    assert ray.available_resources().get("GPU", 0) == 0
