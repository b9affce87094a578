"""The operator and `drl` on a newer Python than the training stack supports."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from e2e.images.catalog import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # another environment, and its tests

NEWER = ("3.14", "3.13")
# Where the newer Python differs: TLS, streams without a reference, nested JSON.
FOLDERS = ("client", "cluster", "handlers")
TEST_PACKAGES = (
    "cryptography",
    "httpx2",
    "hypothesis",
    "jsonschema",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "trustme",
)
PYENV = Path.home() / ".pyenv" / "versions"


def newer_python() -> Path | None:
    """The newest installed Python that `train` does not support, also one of pyenv's that is not on the PATH."""
    for version in NEWER:
        folders = [*map(Path, os.get_exec_path()), *sorted(PYENV.glob(f"{version}.*/bin"), reverse=True)]
        for program in (folder / f"python{version}" for folder in folders):
            # A shim of pyenv exists for versions that are not selected, and fails.
            if (
                program.exists()
                and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0
            ):
                return program
    return None


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the operator's extra, in the versions of the lock."""
    python = newer_python()
    if python is None:
        pytest.skip(f"this machine has no Python {' or '.join(NEWER)}")
    folder = tmp_path_factory.mktemp("newer")
    pins = re.findall(r"^[A-Za-z0-9._-]+==[^\s;]+", (ROOT / "requirements" / "all.txt").read_text(), re.MULTILINE)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins))
    programs = folder / "environment" / "bin"
    subprocess.run([python, "-m", "venv", programs.parent], check=True)
    install = [programs / "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraints]
    subprocess.run([*install, f"{ROOT}[operator]", *TEST_PACKAGES], check=True)
    return programs


def test_operator_and_client_pass_their_tests(programs: Path) -> None:
    folders = [ROOT / "tests" / "control" / name for name in FOLDERS]
    quick = "not slow and not cluster and not bare"
    command = [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", quick, *folders]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_a_run_names_the_pythons_that_it_supports(programs: Path, tmp_path: Path) -> None:
    command = [programs / "drl", "run", ROOT / "examples" / "colors-grpo.yaml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "not installed: Python 3.11 or 3.12 (this is 3.1" in result.stderr
