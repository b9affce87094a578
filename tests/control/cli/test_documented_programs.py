"""Every shell command in the documents names what exists, and is run by a test or listed with what it needs."""

import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from control.cli.document_blocks import PAGES, ROOT, Block, Command, blocks, commands, inline_commands, split
from omni_operator.cli.main import app

SHELL = [block for page in PAGES for block in blocks(page) if block.language == "sh"]
JOBS = {
    page: [block for block in blocks(ROOT / page) if block.language == "yaml" and "kind: DiffusionRLJob" in block.text]
    for page in {block.page for block in SHELL}
}
# What commands need that this test does not run, or the test that runs them: programs of others, ...
NEEDED_BY_OTHERS = {
    "a server": "base64, curl, jq",
    "nothing": "cp, export, mkdir, mv",
    "Docker and a registry": "docker",
    "a cluster": "helm, kubectl",
    "the Hugging Face hub": "hf",
}
# ... and commands of this repository.
NEEDED = {
    "a GPU": "drl doctor --gpu, drl run examples/sd35-ocr-1gpu.yaml, drl run examples/sd35-own-lora.yaml",
    "a cluster": (
        "drl fetch, drl logs, drl resume, drl submit, drl suspend, drl watch, drl why, make clean-cache, "
        "make cluster, make demo"
    ),
    "tests/contract/test_fit_command.py": "drl fit",
    "minutes": (
        "drl model shapes, make cache, make check, make crds, make format, make test, "
        "python -m e2e.programs, python -m pytest, python benchmarks/operator_create.py, "
        "python benchmarks/operator_memory.py, python benchmarks/operator_events.py, "
        "python benchmarks/operator_scale.py, python benchmarks/operator_fairness.py, "
        "python benchmarks/operator_soak.py"
    ),
    "tests/contract/test_own_reward.py": "drl run examples/my-job.yaml, drl validate examples/my-job.yaml",
    "tests/ml/engine/runs/test_own_family.py": "drl run job.yaml, python3 -m my_flux.tiny_model",
    "tests/control/e2e/test_docs_site.py": "make docs",
    "a package index": "make lock, make setup, pip install",
    "tests/control/e2e/test_release.py": "make release",
    "tests/ml/engine/runs/test_whole_job.py": "make run",
    "e2e/suites/test_operator_image.py": "python -m e2e.images",
    "tests/ml/trainer/rewards/test_scorer_pools.py": "python3 -c",
    "nothing": "python3 -m venv",
    "tests/ml/test_extensions.py": "python3 -m verl_omni.trainer.main_diffusion",
    "tests/ml/trainer/output/test_trained_model.py": "python3 -m verl_omni.trainer.output.trained_model",
    "tests/ml/reward_loop/test_reward_server_page.py": "python3 reward_server.py",
}
OTHERS, NEEDS = (
    {command: needed for needed, names in table.items() for command in names.split(", ")}
    for table in (NEEDED_BY_OTHERS, NEEDED)
)
RUN = ("drl validate --cluster", "drl render --cluster")
VERBS = {
    "kubectl": {"apply", "create", "delete", "events", "get"},
    "helm": {"install", "repo", "rollback", "test", "uninstall", "upgrade"},
    "docker": {"build", "push"},
}
# Modules that a page writes itself, and modules of installed packages.
ELSEWHERE = {
    "my_flux.tiny_model": "examples/own-family/my_flux/tiny_model.py",
    "pytest": "",
    "suite": "tests/suite/__main__.py",
    "venv": "",
}
MADE_BY_READERS = {"examples/sd35-medium", "examples/my-lora"}  # folders of a model and an adapter
WRITTEN_BY_PAGES = {"reward_server.py"}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
VARIABLES = set(re.findall(r"\$\((?:if )?\$?\(?([A-Z]+)\)", (ROOT / "Makefile").read_text(encoding="utf-8")))
NOT_OF_VENV = "the program is not the one in .venv"
OPTION = re.compile(r"^(--[a-z][a-z-]*)")


def documented() -> Iterator[Command]:
    for block in SHELL:
        yield from commands(block)


def named_in_text() -> Iterator[Command]:
    """Commands in running text, for which arguments may be missing."""
    for page in PAGES:
        for line in inline_commands(page):
            if re.match(r"(?:PYTHONPATH=\S+ )?(?:make|python3?|\S+/bin/python|kubectl|helm|docker) [^ ]", line):
                yield from split(page.relative_to(ROOT).as_posix(), line)


def verb(command: Command) -> str:
    """The first two words of a command."""
    return " ".join(command.words[:2])


def problems(command: Command) -> list[str]:
    """What a command names and does not exist; empty for `drl`, whose commands another test parses."""
    program = Path(command.words[0]).name
    arguments = list(command.words[1:])
    verbs = VERBS.get(program)
    checks = {"make": _of_make, "helm": _of_helm, "python": _of_python, "python3": _of_python}
    problems = [verb(command)] if verbs and arguments[0] not in verbs else []
    if program in checks:
        problems += checks[program](command, arguments)
    elif program not in (*OTHERS, "drl", "pip"):
        problems.append(f"{program}: not one of the known programs")
    return problems + _missing_files(command, arguments)


def _of_make(_: Command, arguments: list[str]) -> list[str]:
    return [
        word
        for word in arguments
        if word not in TARGETS and not (re.match(r"[A-Z]+=", word) and word.partition("=")[0] in VARIABLES)
    ]


def _of_helm(_: Command, arguments: list[str]) -> list[str]:
    values = YAML(typ="safe").load(ROOT / "charts" / "omni-operator" / "values.yaml")
    unknown = []
    for option, argument in pairwise(arguments):
        for entry in argument.split(",") if option == "--set" else ():
            inner = values
            for part in entry.partition("=")[0].split("."):
                if not isinstance(inner, dict) or part not in inner:
                    unknown.append(f"value {entry}")
                    break
                inner = inner[part]
    return unknown


def _of_python(command: Command, arguments: list[str]) -> list[str]:
    if arguments[0] == "-c":
        return []
    module = arguments[1] if arguments[0] == "-m" else ""
    path = ROOT / (ELSEWHERE.get(module, f"{module.replace('.', '/')}.py") if module else arguments[0])
    if not path.exists():
        path = path.with_suffix("") / "__main__.py"
    if ELSEWHERE.get(module) == "":
        return _of_pytest(arguments[2:]) if module == "pytest" else []
    if not module and arguments[0] in WRITTEN_BY_PAGES:
        return []
    if not path.exists():
        return [f"{module or arguments[0]}: no such program"]
    repository_program = path.is_relative_to(ROOT / "e2e") or path.is_relative_to(ROOT / "benchmarks")
    problems = [NOT_OF_VENV] if repository_program and not command.words[0].endswith("/bin/python") else []
    read = path.read_text(encoding="utf-8") + (ROOT / "benchmarks" / "results.py").read_text(encoding="utf-8")
    options = [match[1] for word in arguments if (match := OPTION.match(word))]
    return problems + [f"option {option}" for option in options if f'"{option}"' not in read]


def _of_pytest(arguments: list[str]) -> list[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    marks = {mark.partition(":")[0] for mark in config["markers"]}
    return [word for at, word in enumerate(arguments) if arguments[at - 1] == "-m" and word not in marks]


def _missing_files(command: Command, arguments: list[str]) -> list[str]:
    """Paths in the repository that do not exist; a job may be one of the page."""
    names = {re.search(r"name: ([\w-]+)", block.text)[1] for block in JOBS.get(command.page, ())}
    paths = [
        word.partition("::")[0]
        for option, word in zip(["", *arguments], arguments, strict=False)
        if re.match(r"^(examples|charts|crds|images|benchmarks|e2e|tests|docs)/", word)
        or (option in ("--filename", "-f", "--file") and word != "-")
        or (re.fullmatch(r"[\w/-]+\.yaml", word) and not word.isupper() and option != "--settings")
    ]
    files = {f"{name}.yaml" for name in names} | {"JOB.yaml", "job.yaml", "FILE.yaml", "examples/my-job.yaml"}
    files |= MADE_BY_READERS
    return [path for path in paths if path.rstrip("/") not in files and not (ROOT / path).exists()]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in SHELL])
def test_what_a_block_of_shell_names_exists(block: Block) -> None:
    wrong_commands = {command.text: wrong for command in commands(block) if (wrong := problems(command))}
    assert wrong_commands == {}
    assert commands(block), "a block of shell without a command"


def test_what_a_command_in_running_text_names_exists() -> None:
    named = list(named_in_text())
    assert len(named) > 60
    wrong = {
        f"{command.page}: {command.text}": missing
        for command in named
        if len(command.words) > 1
        and (missing := [text for text in problems(command) if text not in (NOT_OF_VENV, verb(command))])
    }
    assert wrong == {}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.name)
def test_commands_in_comments_of_the_examples_name_what_exists(path: Path) -> None:
    comments = re.findall(r"^#(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [line for text in comments for line in re.findall(r"^ +(?:\d\. )?((?:kubectl|drl|make|helm) .*)", text)]
    commented = [command for line in lines for command in split(path.name, line)]
    assert {command.text: wrong for command in commented if (wrong := problems(command))} == {}


def test_every_command_is_run_or_listed_with_what_it_needs() -> None:
    texts = {command.text for command in documented()}
    listed = (*RUN, *NEEDS, *OTHERS)
    assert [text for text in sorted(texts) if not text.startswith(listed)] == [], "run it here, or write what it needs"
    assert [name for name in listed if not any(text.startswith(name) for text in texts)] == [], "no document has it"
    tests = [needed for needed in NEEDS.values() if needed.endswith(".py")]
    assert [path for path in tests if not (ROOT / path).exists()] == []


def test_each_pattern_of_a_download_has_its_own_option() -> None:
    """`hf download` takes a second pattern for the name of a file, which does not exist, and ignores the option."""
    two = re.compile(r"""--(?:in|ex)clude\s+(["'])[^"']*\1\s+["']""")
    files = [*PAGES, *(ROOT / "examples").rglob("*.yaml"), *(ROOT / "verl_omni").rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert [name for name, text in texts.items() if two.search(text)] == []
    assert two.search("--exclude 'a*' 'b*'") and not two.search("--exclude 'a*' --exclude 'b*'")


def test_no_command_hides_in_a_block_of_text() -> None:
    programs = {Path(command.words[0]).name for command in documented()}
    hidden = [
        f"{block.place}: {line}"
        for page in PAGES
        for block in blocks(page)
        if block.language == "text"
        for line in block.text.splitlines()
        if line.split(" ")[0] in programs
    ]
    assert hidden == [], "write a command into a block of shell"


@pytest.mark.parametrize(
    "command",
    [command for command in dict.fromkeys(documented()) if command.text.startswith(RUN)],
    ids=lambda command: f"{command.page}-{command.text}",
)
def test_a_command_that_needs_nothing_succeeds(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in JOBS[command.page]:
        name = re.search(r"name: ([\w-]+)", block.text)
        assert name
        (tmp_path / f"{name[1]}.yaml").write_text(block.text)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, list(command.words[1:]))
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("make tset", ["tset"]),
        ("make release VERSON=1.0.0", ["VERSON=1.0.0"]),
        ("helm install omni charts/omni-operator --set jobs.imag=x", ["value jobs.imag=x"]),
        ("helm remove omni", ["helm remove"]),
        ("kubectl apply --filename examples/claims/run.yaml", ["examples/claims/run.yaml"]),
        ("python -m e2e.images", [NOT_OF_VENV]),
        (".venv/bin/python benchmarks/operator_scale.py --job 1", ["option --job"]),
        (".venv/bin/python -m e2e.image", ["e2e.image: no such program"]),
        (".venv/bin/python -m pytest e2e -m clusters", ["clusters"]),
        ("docker build --file images/operators/Dockerfile .", ["images/operators/Dockerfile"]),
        ("omni list", ["omni: not one of the known programs"]),
    ],
)
def test_what_does_not_exist_is_found(line: str, wrong: list[str]) -> None:
    (command,) = split("README.md", line)
    assert problems(command) == wrong
