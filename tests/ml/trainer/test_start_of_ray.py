"""The start of Ray in the driver."""

from __future__ import annotations

import os
import subprocess
import sys

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
