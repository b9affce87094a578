"""Options of every command: help, version, completion, JSON, standard input, and options without effect."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from omni_operator.cli.machine import device_checks, doctor, machine_facts
from omni_operator.cli.main import app
from omni_operator.cli.options import PLACEHOLDER_IMAGE

ROOT = Path(__file__).parents[3]
CPU_JOB = ROOT / "tests" / "golden" / "cpu" / "job.yaml"
EXAMPLE = ROOT / "examples" / "red-grpo.yaml"
WriteJob = Callable[..., Path]


def drl(*arguments: str | Path, stdin: str | None = None, **variables: str) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, env=variables)


def commands(command: Any, name: str = "drl") -> Iterator[tuple[str, Any]]:
    """Every command and group of the program, with its full name."""
    yield name, command
    for inner, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, f"{name} {inner}")


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("arguments", "printed", "left_out"),
    [
        (["--help"], "  validate  Check jobs without running them.", {"pydantic", "ruamel.yaml", "yaml"}),
        (["validate", "JOB"], "is valid", {"omni_operator.plan.objects"}),
        (["validate", "JOB", "--cluster"], "is valid", set()),
        (["render", "JOB"], "trainer.total_training_steps=", {"omni_operator.plan.objects"}),
    ],
)
def test_a_short_command_imports_no_heavy_module_and_builds_only_the_model_of_a_job(
    arguments: list[str], printed: str, left_out: set[str], write_job: WriteJob
) -> None:
    """These take 0.1 to 0.5 s of CPU on a quiet machine; modules and models are what they spend it on."""
    words = [str(write_job()) if word == "JOB" else word for word in arguments]
    code = f"""
import sys
from omni_operator.cli.main import app
app({words!r}, standalone_mode=False)
print(*sys.modules)
spec = [module for name, module in sys.modules.items() if name.startswith("omni_operator.api.spec.")]
print([name for module in spec for name, kind in vars(module).items() if getattr(kind, "__pydantic_complete__", False)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, modules, built = done.stdout.splitlines()
    assert printed in "\n".join(shown)
    heavy = {"rich.console", "psutil", "kubernetes", "kopf", "httpx2", "numpy", "torch"}
    assert (heavy | left_out) & set(modules.split()) == set()
    assert built == "[]"


@pytest.mark.parametrize("name", EVERY)
def test_every_command_and_option_has_help(name: str) -> None:
    command = EVERY[name]
    assert command.help
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []
    shown = drl(*name.split()[1:], "--help")
    assert shown.exit_code == 0
    for parameter in command.params:
        assert parameter.help.split()[0] in shown.stdout


@pytest.mark.parametrize("name", [name for name, command in EVERY.items() if not hasattr(command, "commands")])
def test_the_help_of_every_command_has_an_example_with_valid_arguments(name: str) -> None:
    (example,) = re.findall(r"^Example: (.+)$", EVERY[name].help, re.MULTILINE)
    words = shlex.split(example.partition(" > ")[0])
    assert words[: len(name.split())] == name.split()
    command = EVERY[name]
    values = command.make_context(name, words[len(name.split()) :]).params
    assert None not in [values[parameter.name] for parameter in command.params if parameter.required]


@pytest.mark.parametrize("group", ["", "model"])
def test_the_list_of_commands_cuts_no_sentence(group: str) -> None:
    listed = drl(*group.split(), "--help", COLUMNS="80", TERMINAL_WIDTH="80").stdout.partition("Commands:\n")[2]
    assert listed
    assert [line for line in listed.splitlines() if not line.endswith(".") or line.endswith("...")] == []


def test_every_command_and_option_is_in_docs_cli_md() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    names = {name for name, command in EVERY.items() if not getattr(command, "commands", None)}
    options = {option for command in EVERY.values() for parameter in command.params for option in parameter.opts}
    assert [name for name in sorted(names) if f"`{name}" not in page] == []
    assert [option for option in sorted(options) if option.startswith("--") and option not in page] == []


def test_the_version_is_that_of_the_distribution() -> None:
    assert drl("--version").stdout == f"drl {version('omni-operator')}\n"


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("drl ", "validate"),
        ("drl model ", "tiny"),
        ("drl run --f", "--fresh"),
        ("drl init flux", "flux2-klein"),
        ("drl model tiny ", "qwen_image_edit_plus"),
        ("drl init sd35 --reward pick", "pickscore"),
    ],
)
def test_completion_suggests_commands_options_families_and_scorers(words: str, said: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "operator"),
        "_DRL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = "from omni_operator.cli.main import app; app(prog_name='drl')"
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert said in result.stdout.split()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("render", CPU_JOB, "--image", "i"), "--image has no effect without --cluster"),
        (("render", CPU_JOB, "--settings", "s.yaml"), "--settings has no effect without --cluster"),
        (("render", CPU_JOB, "--cluster", "--runs", "runs"), "--runs has no effect with --cluster"),
        (("render", CPU_JOB, "--cluster", "--command"), "--command has no effect with --cluster"),
        (("render", CPU_JOB, "--json", "--command"), "--command has no effect with --json"),
        (("watch", "NAME", "--json", "--plain"), "--plain has no effect with --json"),
        (
            ("render", CPU_JOB, "--cluster", "--image", "i", "--set", "spec.runtime={image: j, rayVersion: 2.60.0}"),
            "--image has no effect because the job names an image",
        ),
        (("validate", CPU_JOB, "--image", "i"), "--image has no effect without --cluster"),
        (("validate", CPU_JOB, "--settings", "s.yaml"), "--settings has no effect without --cluster"),
        (("validate", CPU_JOB, CPU_JOB), "a file is named twice"),
        (("validate", CPU_JOB, EXAMPLE, "--set", "spec.seed=1"), "--set is for one job"),
        (("validate", CPU_JOB, "--set", "spec.seed=1", "--set", "spec.seed=2"), "already set by --set spec.seed=1"),
        (("run", CPU_JOB, "--seed", "1", "--set", "spec.seed=2"), "already set by --set spec.seed=2"),
        (("render", CPU_JOB, "--set", "spec.seed=1", "--set", "spec.seed=1"), "already set by --set spec.seed=1"),
        (("render", CPU_JOB, "--set", "spec.seed=1", "--set", "spec={seed: 2}"), "already set by --set spec.seed=1"),
    ],
)
def test_an_option_without_effect_is_refused(arguments: tuple[str | Path, ...], said: str) -> None:
    result = drl(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_validate_checks_the_job_that_run_would_start_with_the_same_changes(write_job: WriteJob) -> None:
    job = write_job()
    assert drl("validate", job, "--set", "spec.trainer.totalSteps=5").exit_code == 0
    for wrong, reason in (("totalSteps=0", "0 must be at least 1"), ("totalStps=5", "did you mean 'totalSteps'?")):
        change = f"spec.trainer.{wrong}"
        validated, run = (drl(command, job, "--set", change) for command in ("validate", "run"))
        assert validated.exit_code == run.exit_code == 2
        assert validated.stderr == run.stderr
        assert f"--set {change}" in validated.stderr and reason in validated.stderr
    assert "no readable file" in drl("validate", job, "--set", "spec.data.train=[absent.jsonl]").stderr


def test_image_is_refused_if_every_job_names_an_image(tmp_path: Path) -> None:
    named = tmp_path / "job.yaml"
    named.write_text(CPU_JOB.read_text() + "  runtime: {image: i, rayVersion: 2.60.0}\n")
    assert drl("validate", named, "--cluster").exit_code == 0
    result = drl("validate", named, "--cluster", "--image", "j")
    assert (result.exit_code, result.stderr) == (2, "--image has no effect because every job names an image\n")
    assert drl("validate", named, CPU_JOB, "--cluster", "--image", "j").exit_code == 0


def test_report_compares_several_runs_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(
        "omni_operator.cli.machine.training_stack.exec_module", lambda module, given: called.append(given)
    )
    for name in ("runs/a", "other/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
    runs = tmp_path / "runs"
    other_run = tmp_path / "other" / "b"
    out = tmp_path / "out.html"
    assert drl("report", "a", other_run, "--runs", runs, "--out", out).exit_code == 0
    assert called == [[str(runs / "a"), str(other_run), "--out", str(out)]]
    for arguments, reason in (
        (("a", "--out", out), "--out has no effect with one run, whose report is in its folder"),
        (("a", "c"), "no run 'c' in"),
        (("a", "a"), f"{runs / 'a'} is given twice; name different runs"),
        (("a", other_run, "--out", tmp_path / "none" / "x.html"), f"--out: {tmp_path / 'none'} is not a folder"),
        (("a", other_run, "--out", tmp_path), f"--out: {tmp_path} is a folder; name a file in it, such as {tmp_path}/"),
        ((other_run,), f"--runs has no effect because {other_run} is a run folder"),
        ((tmp_path,), f"{tmp_path} is not the folder of a run that has begun to train: it has no metrics.jsonl"),
    ):
        refused = drl("report", *arguments, "--runs", runs)
        assert (refused.exit_code, reason in refused.stderr) == (2, True), refused.stderr
    assert len(called) == 1


def test_a_job_is_read_from_standard_input(write_job: WriteJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write_job()
    monkeypatch.chdir(job.parent)
    text = job.read_text()
    assert drl("validate", "-", stdin=text).stdout == "<stdin>: a-job is valid\n"
    assert drl("render", "-", stdin=text).stdout == drl("render", job).stdout
    wrong = drl("validate", "-", stdin=text.replace("totalSteps", "totalStps"))
    assert wrong.exit_code == 2
    assert "<stdin>:12: spec.trainer.totalStps: unknown field; did you mean 'totalSteps'?" in wrong.stderr.splitlines()


def test_validate_reports_missing_local_files(write_job: WriteJob) -> None:
    job = write_job()
    (job.parent / "train.jsonl").unlink()
    (job.parent / "model" / "model_index.json").unlink()
    result = drl("validate", job)
    assert result.exit_code == 2
    assert f"{job}:6: spec.model.base: no model in {job.parent / 'model'} (no model_index.json); " in result.stderr
    assert f"{job}:7: spec.data.train[0]: no readable file {job.parent / 'train.jsonl'}\n" in result.stderr
    # A pod has other files.
    assert drl("validate", job, "--cluster").exit_code == 0


def test_a_command_in_a_message_has_quotes_around_a_path_with_blanks(tmp_path: Path) -> None:
    for name, shown in (("jobs", "jobs/shapes-sd3"), ("my jobs", "'{}/my jobs/shapes-sd3'")):
        (tmp_path / name).mkdir()
        job = tmp_path / name / "job.yaml"
        job.write_text(EXAMPLE.read_text())
        assert f"{shown.format(tmp_path)}` (random weights)" in drl("validate", job).stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("./model", "Qwen/Qwen-Image"), "spec.model.base: 'Qwen/Qwen-Image' is a model id, which only the operator"),
        (("jpeg}", "jpeg, pool: {python: env/py}}"), "spec.reward.scorers[0].pool.python: no interpreter {}/env/py\n"),
    ],
)
def test_what_only_pods_have_is_valid_on_a_cluster_only(
    write_job: WriteJob, change: tuple[str, str], said: str
) -> None:
    job = write_job()
    job.write_text(job.read_text().replace(*change))
    assert said.format(job.parent) in drl("validate", job).stderr
    assert drl("validate", job, "--cluster").exit_code == 0


def test_prompt_files_of_an_unknown_format_are_refused(write_job: WriteJob) -> None:
    job = write_job()
    (job.parent / "train.csv").touch()
    job.write_text(job.read_text().replace("train.jsonl", "train.csv"))
    assert "'train.csv' must end in .jsonl, .json, .parquet" in drl("validate", job).stderr
    custom = job.read_text().replace("test.behave=well", "data.custom_cls.path=mine.py")
    job.write_text(custom)
    assert drl("validate", job).exit_code == 0


def test_validate_prints_json(write_job: WriteJob, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    right = write_job()
    wrong.write_text(right.read_text().replace("jpeg", "jpg"))
    result = drl("validate", "--json", right, wrong)
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["valid"] is False
    assert report["jobs"][0] == {"file": str(right), "name": "a-job", "valid": True, "problems": [], "notes": []}
    (problem,) = report["jobs"][1]["problems"]
    assert (problem["where"], problem["field"]) == (f"{wrong}:9", "spec.reward.scorers[0].name")
    assert "did you mean 'jpeg'?" in problem["text"]


def test_a_file_that_cannot_be_read_as_yaml_hides_no_other_verdict(write_job: WriteJob, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    right = write_job()
    wrong.write_text(right.read_text() + "  seed: !!int abc\n")
    result = drl("validate", "--json", wrong, right)
    assert result.exit_code == 2
    first, second = json.loads(result.stdout)["jobs"]
    assert "'abc' is not a valid value of !!int" in first["problems"][0]["text"] and second["valid"]
    result = drl("validate", wrong, right)
    assert (result.exit_code, result.stdout) == (2, f"{right}: a-job is valid\n")


def test_render_prints_json(write_job: WriteJob) -> None:
    job = write_job()
    rendered = json.loads(drl("render", "--json", job).stdout)
    assert rendered["overrides"] == drl("render", job).stdout.splitlines()
    assert rendered["command"][-len(rendered["overrides"]) :] == rendered["overrides"]
    objects = json.loads(drl("render", "--json", "--cluster", "--image", "i", CPU_JOB).stdout)
    printed = drl("render", "--cluster", "--image", "i", CPU_JOB).stdout
    assert objects == {"apiVersion": "v1", "kind": "List", "items": list(YAML(typ="safe", pure=True).load_all(printed))}


def test_doctor_prints_json() -> None:
    result = drl("doctor", "--json")
    diagnosis = json.loads(result.stdout)
    assert diagnosis["ready"] is (result.exit_code == 0)
    assert {finding["level"] for finding in diagnosis["findings"]} <= {"ok", "note", "missing"}
    assert diagnosis["runs_on"]


def test_doctor_gpu_needs_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_facts, "find_accelerators", lambda: ())
    result = drl("doctor", "--gpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("no accelerator: this machine has neither /dev/nvidia0 (NVIDIA) nor /dev/davinci0")


def test_doctor_gpu_prints_each_check_and_what_a_part_printed_last_if_it_crashed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "checks.py"
    program.write_text(
        "import sys\n"
        "if sys.argv[-1] == 'engine': sys.exit('no such kernel')\n"
        """print('a library\\n{"name": "device", "passed": true, "text": "H100", "seconds": 1.2}')\n"""
    )
    monkeypatch.setattr(device_checks, "PROGRAM", "checks")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(typer.Exit):
        doctor.check_device("cuda", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok      device: H100 (1 s)"
    assert lines[1].startswith("FAILED  engine: ") and "checks --device cuda engine ended with exit code 1" in lines[1]
    assert lines[2:] == ["no such kernel (0 s)", "not ready: engine failed"]


def test_a_job_without_an_image_renders_with_a_placeholder_image_and_a_note() -> None:
    result = drl("render", "--cluster", CPU_JOB)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"note: {PLACEHOLDER_IMAGE} is a placeholder")
    assert result.stdout.startswith(f"# {PLACEHOLDER_IMAGE} is a placeholder: replace it before you apply this.\n")
    assert f"image: {PLACEHOLDER_IMAGE}" in result.stdout
    real = drl("render", "--cluster", "--image", "real/image:1", CPU_JOB)
    assert (real.exit_code, "placeholder" in real.stderr + real.stdout) == (0, False)
    noted = drl("validate", "--cluster", CPU_JOB)
    assert (noted.exit_code, "no image given" in noted.stderr) == (0, True)


def test_model_commands_do_not_overwrite_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for arguments in (("tiny", "sd3"), ("shapes",)):
        result = drl("model", *arguments, tmp_path)
        assert (result.exit_code, result.stderr) == (
            2,
            f"{tmp_path} is not empty; give a new folder, or delete it first\n",
        )
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    (tmp_path / "shapes_train.jsonl").touch()
    assert "already contains shapes_train.jsonl" in drl("model", "prompts", tmp_path).stderr


@pytest.mark.slow  # starts a process on a terminal
@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_disables_colors_on_a_terminal(write_job: WriteJob, variables: dict[str, str], colored: bool) -> None:
    job = write_job()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment = {**inherited, "PYTHONPATH": str(ROOT / "operator"), "TERM": "xterm-256color", **variables}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "omni_operator.cli", "run", str(job)],
        stdout=theirs,
        stderr=theirs,
        cwd=job.parent,
        env=environment,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert process.wait() == 0
    assert b"weights v3" in seen
    assert bool(re.search(rb"\x1b\[[0-9;]*(3[0-9]|9[0-7])[0-9;]*m", seen)) is colored


@pytest.mark.parametrize("image", ["", "a b", "a\tb", "x" * 1025])
@pytest.mark.parametrize(
    "command",
    [("validate", "--cluster", EXAMPLE), ("render", "--cluster", EXAMPLE), ("fetch", "red"), ("logs", "red")],
    ids=lambda words: words[0],
)
def test_a_name_that_no_image_has_is_refused(command: tuple[str | Path, ...], image: str) -> None:
    refused = drl(*command, f"--image={image}")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.splitlines()[-1].endswith("is not the name of an image: write REGISTRY/NAME:TAG")


@pytest.mark.parametrize("options", [(), ("--cluster", "--image", "i")])
def test_a_job_cannot_control_the_terminal_of_who_checks_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(Path(CPU_JOB).read_text().replace("spec:\n", 'spec:\n  "a\\e]0;title\\a": 1\n', 1))
    validated = drl("validate", job, *options)
    assert validated.exit_code == 2
    assert "]0;title" in validated.stderr and validated.stderr.replace("\n", "").isprintable()


def test_validate_takes_the_job_among_other_objects_and_names_them(write_job: WriteJob) -> None:
    job = write_job()
    job.write_text(f"kind: ConfigMap\nmetadata: {{name: rewards}}\n---\n{job.read_text()}")
    done = drl("validate", job)
    assert done.exit_code == 0 and f"{job}: a-job is valid" in done.stdout
    assert done.stderr == f"note: {job}: not read, because drl takes the job alone: ConfigMap rewards (line 1)\n"


def test_a_settings_file_without_settings_is_not_called_a_job(write_job: WriteJob, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("# image: example.com/omni-rollout:1.0\n", encoding="utf-8")
    refused = drl("validate", write_job(), "--cluster", "--settings", settings)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"{settings}: expected one mapping of settings, found 0 documents\n"


def test_validate_notes_a_judge_that_no_scorer_asks() -> None:
    for options in ((), ("--cluster", "--image", "i")):
        noted = drl("validate", EXAMPLE, *options, "--set", "spec.reward.model={base: a/b}")
        assert (noted.exit_code, "spec.reward.model is a judge that no scorer asks" in noted.stderr) == (0, True)
