"""`drl` with only its own dependencies installed: what works, and the errors of commands that need more."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a new interpreter for each test

ROOT = Path(__file__).parents[3]
STACK = {"torch", "ray", "vllm", "vllm_omni", "verl", "transformers", "diffusers", "hydra", "omegaconf", "numpy"}
BANNED = {*STACK, "kopf"}
PROJECT = "omni-operator"


def requirements(name: str, extra: str | None = None) -> list[str]:
    """Names of the distributions that one requires, or that an extra of it requires besides."""
    lines = distribution(name).requires or []
    of_extra = [line for line in lines if (f'extra == "{extra}"' in line or f"extra == '{extra}'" in line)]
    chosen = of_extra if extra else [line for line in lines if "extra ==" not in line]
    return [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in chosen]


def closure(names: list[str]) -> set[str]:
    """Distributions and all that they require, extras left out."""
    required_names: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        try:
            required = requirements(name)
        except PackageNotFoundError:
            continue  # required on another platform only
        if name not in required_names:
            required_names.add(name)
            todo += required
    return required_names


def make_site(site: Path, names: list[str]) -> Path:
    """A folder that holds these distributions, what they require, and nothing else."""
    for name in closure(names):
        for file in distribution(name).files or []:
            top = file.parts[0]
            target = Path(str(distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and not (site / top).exists() and target.exists():
                (site / top).symlink_to(target)
    return site


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install omni-operator` installs."""
    return make_site(tmp_path_factory.mktemp("site"), requirements(PROJECT))


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT / 'operator'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-S", *arguments], env=environment, cwd=site, capture_output=True, text=True, check=False
    )


def drl(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(site, "-m", "omni_operator.cli", *arguments)


def test_importing_every_command_imports_nothing_of_the_training_stack() -> None:
    names = "{name.split('.')[0] for name in sys.modules}"
    code = f"import sys; from omni_operator.cli.program import Commands; dict(Commands({{}})); print(*{names})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    imported = set(result.stdout.split())
    assert "pydantic" in imported
    assert imported & BANNED == set()
    assert "kubernetes" not in imported  # takes a second


def test_operator_and_settings_need_the_operators_extra_and_no_training_stack(tmp_path: Path) -> None:
    site = make_site(tmp_path, [*requirements(PROJECT), *requirements(PROJECT, "operator")])
    code = (
        "import importlib, importlib.util, pkgutil, omni_operator, verl_omni.settings_schema\n"
        f"print([name for name in {sorted(STACK)!r} if importlib.util.find_spec(name)])\n"
        "for package in (omni_operator, verl_omni.settings_schema):\n"
        "    for module in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
        "print(verl_omni.settings_schema.layout.default_algorithm())"
    )
    child = run(site, "-c", code)
    assert child.stdout.splitlines() == ["[]", "flow_grpo"], child.stderr[-2000:]


def test_commands_for_a_cluster_without_its_client_say_what_to_install(slim: Path) -> None:
    result = drl(slim, "why", "blue")
    assert (result.returncode, result.stderr) == (2, "not installed: kubernetes; install omni-operator[operator]\n")


def test_jobs_are_validated_and_rendered_without_the_training_stack(slim: Path) -> None:
    example = str(ROOT / "examples" / "shapes-grpo.yaml")
    assert drl(slim, "validate", example).stdout == f"{example}: shapes-grpo is valid\n"
    assert "trainer.total_training_steps=120" in drl(slim, "render", example).stdout.splitlines()


def test_doctor_names_missing_packages_with_the_remedy(slim: Path) -> None:
    result = drl(slim, "doctor")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    index = lines.index("MISSING torch is not installed")
    assert lines[index + 1].endswith("-> run `make setup` in a clone of the repository")
    assert lines[-1] == f"not ready: {sum(line.startswith('MISSING') for line in lines)} missing"


@pytest.mark.parametrize("arguments", [("model", "tiny", "sd3", "m"), ("model", "shapes", "m"), ("report", "a-run")])
def test_commands_that_need_the_training_stack_report_it_missing_in_one_line(
    slim: Path, arguments: tuple[str, ...]
) -> None:
    (slim / "runs" / "a-run").mkdir(parents=True, exist_ok=True)
    (slim / "runs" / "a-run" / "metrics.jsonl").touch()
    result = drl(slim, *arguments)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("not installed: torch, ray, verl, ")
    assert line.endswith("; run `make setup` in a clone of the repository")


def test_a_run_without_the_training_stack_is_refused(slim: Path) -> None:
    result = drl(slim, "run", str(ROOT / "examples" / "sd3-tiny-cpu.yaml"), "--runs", str(slim / "runs"))
    assert result.returncode == 2
    assert "this machine: not installed: torch, ray, " in result.stderr
