"""The start of Ray in the driver."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def succeed(command: list[str], environment: Mapping[str, str], **options: Any) -> None:
    environment = {**environment, "VERL_PLATFORM": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr[-2000:]


def test_ray_is_imported_before_another_thread_imports_the_training_stack() -> None:
    """Two threads that import it at once find it half imported, and the run ends."""
    succeed([sys.executable, "-c", SCRIPT], os.environ)


# What `ray.init` asks for; None is its default.
RUNTIME = """
from verl_omni.trainer import startup

startup.prepare_environment(has_accelerator=False)
from ray._private.worker import _maybe_modify_runtime_env as completed

for environment in (None, {"py_executable": "x"}):
    assert completed(environment, False) == environment, completed(environment, False)
"""


def test_ray_starts_workers_of_a_driver_below_uv_as_without_uv(tmp_path: Path) -> None:
    """Unless it is told, Ray starts them with `uv run` too, in an uploaded copy of the current folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    (uv,) = cache.glob("omni-operator/uv-*/bin/uv")  # which `make setup` installs
    below_uv = [str(uv), "run", "--no-project", "--offline", "--python", sys.executable, sys.executable]
    unset = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"}
    succeed([*below_uv, "-c", RUNTIME], unset, cwd=tmp_path)
