"""A scorer with a device: its reward workers reserve accelerators in Ray, or share the trainer's, or are refused."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.ml.local_ray import local_ray
from verl_omni.trainer.settings import configuration, process_counts, reward_settings, scorer_devices

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"
REQUIRED = ["data.train_files=t", f"actor_rollout_ref.model.path={MODEL}", "trainer.total_training_steps=1"]
FUNCTION = "reward.custom_reward_function"
SEVERAL = "reward.reward_manager.name=MultiVisualRewardManager"
SCORER = """
import os
import ray


def compute_score(data_source, solution_image, ground_truth, extra_info, device):
    number = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return {"score": 0.0, "device": device, "reserved": ",".join(number), "seen": os.environ["CUDA_VISIBLE_DEVICES"]}
"""

AHEAD = ("actor_rollout_ref.rollout.nnodes=1", "trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async")
SHARED = "reward.scorer_kwargs.device=trainer"


def load(*overrides: str) -> Any:
    return configuration.load([*REQUIRED, "reward.num_workers=2", *overrides])


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["reward.scorer=jpeg"], None),
        (["reward.scorer=pickscore"], "pickscore on cpu; its setting device=trainer would share the trainer's cuda"),
        (["reward.scorer=hpsv3", SHARED], "hpsv3 on the trainer's cuda, once a batch is generated"),
        (["reward.scorer=hpsv3", "reward.scorer_kwargs.device=cuda:0"], "hpsv3 on cuda:0, a dedicated accelerator"),
        (
            [SEVERAL, "reward.reward_functions={a: {name: clip_score, device: trainer}, jpeg: {}}"],
            "clip_score on the trainer's cuda, once a batch is generated",
        ),
        (
            [f"{FUNCTION}.path=f.py", f"+{FUNCTION}.reward_kwargs.device=cuda"],
            "compute_score on cuda, a dedicated accelerator",
        ),
    ],
)
def test_a_run_says_where_its_scorers_run(overrides: list[str], where: str | None) -> None:
    reward = load(*overrides).reward
    assert scorer_devices.describe(reward, "cuda") == (None if where is None else f"scorers: {where}")
    on_cpu = scorer_devices.describe(reward, "cpu")
    assert on_cpu is None or "would share" not in on_cpu


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([SHARED, *AHEAD], "reward.scorer_kwargs.device: the trainer updates while the next batch is generated"),
        (
            [
                SEVERAL,
                "reward.reward_functions={a: {name: clip_score, device: trainer}, b: {name: hpsv3, device: cuda}}",
            ],
            "reward.reward_functions.a.device: a reward worker has dedicated accelerators (reward.reward_functions.b.",
        ),
    ],
)
def test_accelerators_that_scorers_cannot_share_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(configuration.SettingsError, match=re.escape(message)):
        load(*overrides)


def test_a_function_does_not_share_accelerators_whose_memory_it_would_not_free(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORER)
    overrides = [f"{FUNCTION}.path={tmp_path / 'mine.py'}", f"+{FUNCTION}.reward_kwargs.device=trainer"]
    (problem,) = reward_settings.find_problems(load(*overrides).reward)
    assert problem.startswith(f"{FUNCTION}.reward_kwargs.device: only scorers of this package share the trainer's")


@pytest.mark.parametrize(
    ("overrides", "late", "colocated"),
    [([], False, 1), (["reward.scorer_kwargs.device=cuda"], False, 1), ([SHARED], True, 2)],
)
def test_scorers_that_share_score_once_a_batch_is_generated(overrides: list[str], late: bool, colocated: int) -> None:
    config = load("reward.scorer=pickscore", *overrides)
    assert (scorer_devices.scores_late(config), scorer_devices.colocated(config)) == (late, colocated)
    config.reward.num_workers = None
    config.trainer.n_gpus_per_node = 4
    process_counts.fill_in(config, cpus=1)
    assert config.reward.num_workers == (4 if late else 1)
    assert scorer_devices.shortage(load(SHARED), [{"GPU": 1.0}], "GPU") is None, "they need no others"


@pytest.mark.parametrize(("workers", "share"), [(1, 0.5), (2, 0.5), (3, 0.25), (6, 0.1666)])
def test_the_reward_workers_of_an_accelerator_have_a_share_of_it_together(workers: int, share: float) -> None:
    options = scorer_devices.shared_options(workers, 2, 2, "GPU")
    assert options == {"num_cpus": 0, "num_gpus": pytest.approx(share), "resources": {}}
    assert options["num_gpus"] * math.ceil(workers / 2) <= 0.5
    assert scorer_devices.shared_options(workers, 2, 2, "NPU")["resources"] == {"NPU": options["num_gpus"]}


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
    problem = scorer_devices.shortage(config, nodes, "GPU")
    assert (problem is None) == enough
    config.actor_rollout_ref.rollout.ray_resource = "NPU"  # rollout nodes of another vendor take none of them
    assert (scorer_devices.shortage(config, nodes, "GPU") is None) == (sum(there) - math.prod(trainer) >= 2)
    if problem is not None:
        begin = (
            f"reward.scorer_kwargs.device: 2 reward workers reserve 1 accelerators each, and of the {sum(there)} that"
        )
        assert problem.startswith(begin) and "write trainer or cpu" in problem


def samples(count: int) -> Any:
    from verl import DataProto

    pixels = torch.zeros(count, 3, 8, 8, dtype=torch.uint8)
    columns = {"data_source": "d", "reward_model": {"ground_truth": ""}, "extra_info": {}}
    return DataProto(
        batch=TensorDict({"prompts": torch.zeros(count, 1), "responses": pixels}, batch_size=count),
        non_tensor_batch={
            "uid": np.arange(count).astype(str),
            **{name: np.array([value] * count, dtype=object) for name, value in columns.items()},
        },
    )


def with_function(folder: Path, device: str) -> Any:
    (folder / "mine.py").write_text(SCORER)
    config = load(SEVERAL, f"reward.reward_functions={{mine: {{path: {folder / 'mine.py'}, device: '{device}'}}}}")
    config.actor_rollout_ref.model.tokenizer_path = f"{MODEL}/tokenizer"
    return config


@pytest.mark.slow  # starts Ray
def test_each_reward_worker_sees_an_accelerator_of_its_own(tmp_path: Path) -> None:
    """Ray has three logical GPUs, of which training has taken one."""
    import ray
    from ray.util.placement_group import placement_group

    from verl_omni.trainer.rewards.reward_workers import RewardWorkers

    with local_ray(cpus=1, gpus=3):
        assert placement_group([{"GPU": 1}]).wait(60)
        workers = RewardWorkers(with_function(tmp_path, "cuda:0"), None).reward_loop_workers
        replies = ray.get([worker.compute_score.remote(samples(1)) for worker in workers], timeout=120)
        extras = [reply["reward_extra_info"] for reply in replies]
        assert [extra["reward/mine/device"] for extra in extras] == ["cuda:0"] * 2
        assert len({extra["reward/mine/reserved"] for extra in extras}) == 2
        assert all(extra["reward/mine/reserved"] == extra["reward/mine/seen"] for extra in extras)
        assert ray.available_resources().get("GPU", 0) == 0


@pytest.mark.slow  # starts Ray
def test_reward_workers_that_share_see_the_accelerators_of_the_trainer(tmp_path: Path) -> None:
    """A function stands in for a scorer with a model; the trainer's device is the CPU, and Ray's GPUs are logical.

    Two of three are the trainer's, of which its actors have half.
    """
    import ray
    from verl.single_controller.ray import RayResourcePool

    from verl_omni.trainer.rewards.reward_workers import RewardWorkers

    with local_ray(cpus=5, gpus=3):
        pool = RayResourcePool([2], use_gpu=True, name_prefix="actor", max_colocate_count=2)
        pool.get_placement_groups(device_name="cpu")
        workers = RewardWorkers(with_function(tmp_path, "trainer"), None, pool)
        assert workers.reward_loop_worker_handles is None, "agent loops do not score"
        scored = workers.compute_rm_score(samples(4))
        assert scored.batch["rm_scores"].tolist() == [[0.0]] * 4
        columns = scored.non_tensor_batch
        assert list(columns["reward/mine/device"]) == ["cpu"] * 4
        assert len(set(columns["reward/mine/reserved"])) == 2
        assert list(columns["reward/mine/seen"]) == list(columns["reward/mine/reserved"])
        assert ray.available_resources()["GPU"] == 1, "the third is free"


GROUP_WISE = "def rank(data_sources, solution_images, ground_truths, extra_infos, groups): return []"
DEFAULT_NAME = GROUP_WISE.replace("rank", "compute_score")


@pytest.mark.parametrize(
    ("overrides", "late"),
    [
        ([f"{FUNCTION}.path=FILE", f"{FUNCTION}.name=rank"], True),
        ([f"{FUNCTION}.path=FILE", f"{FUNCTION}.name=other"], False),
        ([SEVERAL, "reward.reward_functions={jpeg: {}, mine: {path: FILE, name: rank}}"], True),
        (["reward.scorer=python", "reward.scorer_kwargs.function='FILE:rank'"], True),
        ([SEVERAL, "reward.reward_functions={mine: {path: FILE}}"], True),
        (["reward.scorer=win_rate"], True),
        (["reward.scorer=jpeg"], False),
    ],
)
def test_a_scorer_that_compares_samples_gets_them_once_a_batch_is_generated(
    tmp_path: Path, overrides: list[str], late: bool
) -> None:
    (tmp_path / "mine.py").write_text(f"{GROUP_WISE}\n\n{DEFAULT_NAME}\n\ndef other(data_source): return 1\n")
    filled = [override.replace("FILE", str(tmp_path / "mine.py")) for override in overrides]
    config = load(*filled)
    assert scorer_devices.scores_late(config) is late
    assert not scorer_devices.needs_engines_asleep(config)
    assert scorer_devices.colocated(config) == 1
    if late:
        with pytest.raises(configuration.SettingsError, match="a scorer with a parameter groups scores a batch once"):
            load(*filled, *AHEAD)
