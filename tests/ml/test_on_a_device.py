"""Tests on a second device (`second_device`), in their own process, because torch cannot unregister a device."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "second",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    not shutil.which("c++") and "E2E_REQUIRED" not in os.environ,
                    reason="no C++ compiler (Debian: apt-get install g++)",
                ),
            ],
        ),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_device_results_equal_cpu_results(kind: str) -> None:
    names = ("sampling_and_weights.py", "actor.py", "reward_models.py", "text_encoders.py")
    checks = [str(ROOT / "tests" / "ml" / "second_device" / name) for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *checks]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja is installed next to Python
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "SECOND_DEVICE": kind, "PATH": tools},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
