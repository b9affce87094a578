"""Pools of scorers on a real Ray: where their processes run, in which environment, and what their ends cost."""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ml.local_ray import local_ray
from tests.ml.trainer.rewards.test_scorer_devices import MODEL, SEVERAL, load, samples
from verl_omni.reward_loop.scorer_results import FAILURE
from verl_omni.trainer.rewards.scorer_processes import check_interpreter

SCORERS = """
import importlib.metadata
import os
from pathlib import Path

import ray


def place(data_source, solution_image, ground_truth, extra_info, device="none"):
    context = ray.get_runtime_context()
    return {
        "score": 0.5,
        "node": context.get_node_id(),
        "process": os.getpid(),
        "device": device,
        "gpu": ",".join(context.get_accelerator_ids()["GPU"]),
    }


def needs_one(data_source, solution_image, ground_truth, extra_info):
    import tinydep

    return {"score": 1.0, "found": importlib.metadata.version("tinydep"), "imported": tinydep.VERSION}


def needs_two(data_source, solution_image, ground_truth, extra_info):
    return {**needs_one(data_source, solution_image, ground_truth, extra_info), "score": 2.0}


def rank(data_sources, solution_images, ground_truths, extra_infos, groups):
    return [{"score": 0.0, "n": groups.count(group), "process": os.getpid()} for group in groups]


def broken(data_source, solution_image, ground_truth, extra_info):
    raise OSError("no such model")


def ends(data_source, solution_image, ground_truth, extra_info, marks, times):
    with Path(marks).open("ab") as file:
        file.write(b".")
    if Path(marks).stat().st_size <= times:
        os._exit(1)
    return 0.25
"""


def workers(folder: Path, parts: dict[str, str], number: int = 2) -> Any:
    """Reward workers; `parts`: the further settings of each function of SCORERS."""
    from verl_omni.trainer.rewards.reward_workers import RewardWorkers

    path = folder / "scorers.py"
    path.write_text(SCORERS)
    named = [
        f"{name}: {{path: {path}, name: {name}, {settings}}}" if name != "brightness" else f"{name}: {{}}"
        for name, settings in parts.items()
    ]
    config = load(SEVERAL, f"reward.reward_functions={{{', '.join(named)}}}")
    config.reward.num_workers = number
    config.actor_rollout_ref.model.tokenizer_path = f"{MODEL}/tokenizer"
    return RewardWorkers(config, None)


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A Ray cluster whose head has no accelerators; tests add nodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def own_ray() -> Iterator[None]:
    with local_ray(cpus=4):
        yield


def write_wheel(folder: Path, version: str) -> Path:
    """A wheel of the package tinydep."""
    path = folder / f"tinydep-{version}-py3-none-any.whl"
    info = f"tinydep-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tinydep/__init__.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tinydep\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def make_environment(folder: Path, version: str) -> Path:
    """An environment with a wheel of tinydep, made by the commands of docs/reference/rewards.md; its interpreter."""
    page = Path(__file__).parents[4] / "docs" / "reference" / "rewards.md"
    (commands,) = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    name = f"envs/tinydep-{version}"
    assert "envs/legacy" in commands and '"transformers<5"' in commands
    commands = commands.replace("envs/legacy", name)
    commands = commands.replace(
        '"transformers<5"', f"--no-index --quiet {shlex.quote(str(write_wheel(folder, version)))}"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", commands], cwd=folder, env={**os.environ, "PATH": path}, check=True)
    return folder / name / "bin" / "python"


@pytest.mark.slow  # starts Ray
@pytest.mark.usefixtures("own_ray")
def test_two_scorers_whose_requirements_conflict_run_beside_each_other(tmp_path: Path) -> None:
    parts = {
        name: f"pool: {{python: '{make_environment(tmp_path, version)}'}}"
        for name, version in (("needs_one", "1.0"), ("needs_two", "2.0"))
    }
    scored = workers(tmp_path, {**parts, "brightness": ""}).compute_rm_score(samples(4))
    assert scored.batch["rm_scores"].flatten().tolist() == [pytest.approx((1 + 2 + 0) / 3)] * 4
    for name, version in (("needs_one", "1.0"), ("needs_two", "2.0")):
        for field in ("found", "imported"):
            assert list(scored.non_tensor_batch[f"reward/{name}/{field}"]) == [version] * 4


@pytest.mark.slow  # starts Ray
def test_processes_run_on_the_pools_nodes_each_with_an_accelerator_and_on_those_that_replace_them(
    tmp_path: Path, nodes: Any
) -> None:
    resources = {"num_cpus": 0, "num_gpus": 2, "resources": {"omni_scorer_place": 1}}
    first = nodes.add_node(**resources)
    nodes.add_node(num_cpus=0, num_gpus=2)
    pool = "{n_gpus_per_node: 2, node_resource: omni_scorer_place}"
    group = workers(tmp_path, {"place": f"pool: {pool}", "brightness": ""}, number=1)
    columns = group.compute_rm_score(samples(4)).non_tensor_batch
    assert set(columns["reward/place/node"]) == {first.node_id}
    assert set(columns["reward/place/gpu"]) == {"0", "1"} and len(set(columns["reward/place/process"])) == 2
    assert set(columns["reward/place/device"]) == {"cpu"}, "the platform of this test"
    assert columns["reward/brightness"].tolist() == [0.0] * 4
    nodes.remove_node(first, allow_graceful=False)
    second = nodes.add_node(**resources)
    after = group.compute_rm_score(samples(2))
    assert after.batch["rm_scores"].flatten().tolist() == [0.25, 0.25]
    assert set(after.non_tensor_batch["reward/place/node"]) == {second.node_id}


@pytest.mark.slow  # starts Ray
@pytest.mark.usefixtures("own_ray")
def test_errors_and_ends_of_a_scorer_in_a_pool_are_treated_as_elsewhere(tmp_path: Path) -> None:
    parts = {
        "broken": "required: false, weight: 0, pool: {}",
        "ends": f"marks: {tmp_path / 'marks'}, times: 1, pool: {{}}",
    }
    group = workers(tmp_path, parts, number=1)
    scored = group.compute_rm_score(samples(3))
    assert scored.batch["rm_scores"].flatten().tolist() == [0.25] * 3
    (text,) = {failure.text for failure in scored.non_tensor_batch[FAILURE]}
    assert text == "reward 'broken' failed: OSError: no such model"
    group.stop()


@pytest.mark.slow  # starts Ray
@pytest.mark.usefixtures("own_ray")
def test_all_samples_of_a_prompt_are_scored_together_by_one_process(tmp_path: Path) -> None:
    data = samples(12)
    data.non_tensor_batch["uid"] = data.non_tensor_batch["uid"].astype(int) // 3
    columns = workers(tmp_path, {"rank": "pool: {nnodes: 2}"}).compute_rm_score(data).non_tensor_batch
    assert columns["reward/rank/n"].tolist() == [3] * 12
    processes = columns["reward/rank/process"].reshape(4, 3)
    assert all(len(set(row)) == 1 for row in processes.tolist())


def test_an_interpreter_that_cannot_run_a_scorer_is_refused(tmp_path: Path) -> None:
    check_interpreter("python", sys.executable)
    (tmp_path / "fails").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "empty").write_text('#!/bin/sh\necho \'[[3, 11], {"omni-operator": "1"}]\'\n')
    (tmp_path / "old").write_text('#!/bin/sh\necho \'[[3, 11], {"omni-operator": "1", "ray": "2.0.0"}]\'\n')
    (tmp_path / "python2").write_text("#!/bin/sh\necho '[[2, 7], {}]'\n")
    texts = ("3, 11", f"{sys.version_info[0]}, {sys.version_info[1]}")
    for name, problem in (
        ("missing", "does not run"),
        ("fails", "does not run"),
        ("empty", "has no package ray"),
        ("old", "has Ray 2.0.0, and the trainer has"),
        ("python2", "is Python 2.7, and the trainer's is"),
    ):
        if (program := tmp_path / name).exists():
            program.write_text(program.read_text().replace(*texts))
            program.chmod(0o755)
        with pytest.raises(ValueError, match=f"^python: {program} {problem}"):
            check_interpreter("python", str(program))


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("true", "pool: must be a group of settings"),
        ("{nnodes: 0}", "pool.nnodes: must be a whole number of at least 1, not 0"),
        ("{n_gpus_per_node: 1.5}", "pool.n_gpus_per_node: must be a whole number of at least 0, not 1.5"),
        ("{python: 3}", "pool.python: must be a text, or null, not 3"),
        ("{node_resource: ''}", "pool.node_resource: must be a text"),
        ("{ray_resource: TPU}", "pool.ray_resource: must be GPU, NPU, or null"),
        ("{replicas: 2}", "pool.replicas: unknown setting; a pool has nnodes, n_gpus_per_node"),
        ("{}, device: cuda", "device: follows from pool.n_gpus_per_node; remove it"),
    ],
)
def test_invalid_pools_are_refused(pool: str, message: str) -> None:
    from verl_omni.trainer.settings import configuration

    with pytest.raises(configuration.SettingsError, match=f"reward.reward_functions.clip.{message}"):
        load(SEVERAL, f"reward.reward_functions={{clip: {{name: clip_score, pool: {pool}}}}}")
