"""The start of Ray in the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a new interpreter, which imports Ray

# Its `_import_everything` runs in another thread while Ray starts in this one.
SCRIPT = """
import sys
from omegaconf import OmegaConf
from verl_omni.trainer import startup

assert "ray" not in sys.modules
complete = []
startup._import_everything = lambda: complete.append(not sys.modules["ray"].__spec__._initializing)
startup._local = lambda options: None
config = {
    "ray_kwargs": {"ray_init": {}}, "trainer": {"n_gpus_per_node": 1, "fork_workers": False},
    "actor_rollout_ref": {
        "rollout": {"agent": {"num_workers": 1}, "nnodes": 0, "n_gpus_per_node": 1, "ray_resource": None},
    },
    "reward": {
        "num_workers": 1, "reward_model": {"enable": False, "ray_resource": None}, "scorer_kwargs": {},
        "reward_functions": {},
    },
}
startup.start_ray(OmegaConf.create(config), lambda text: None)
assert complete == [True], complete
"""


def test_ray_is_imported_before_another_thread_imports_the_training_stack() -> None:
    """Two threads that import it at once find it half imported, and the run ends."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "VERL_PLATFORM": "cpu"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


WORKER = """
import os, sys
from verl_omni.trainer import startup

startup.prepare_environment(has_accelerator=False)
cluster = startup._local({"num_cpus": 1, "include_dashboard": False, "_node_ip_address": "127.0.0.1"})
import ray

@ray.remote
def about():
    return sys.executable, os.getcwd()

assert ray.get(about.remote(), timeout=120) == (sys.executable, os.getcwd())
cluster.stop()
"""


def test_workers_of_a_driver_that_uv_runs_have_its_interpreter_and_its_folder(tmp_path: Path) -> None:
    """Unless it is told, Ray starts them with `uv run` too, in a copy of the folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "omni-operator")
    (uv,) = cache.glob("uv-*/bin/uv")  # `make setup` installs it
    (tmp_path / "pyproject.toml").write_text("")
    unset = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"}
    # A busy machine takes longer than Ray waits.
    patient = {"VERL_PLATFORM": "cpu", "RAY_raylet_start_wait_time_s": "240"}
    done = subprocess.run(
        [uv, "run", "--no-project", "--offline", "--python", sys.executable, sys.executable, "-c", WORKER],
        env=unset | patient, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
