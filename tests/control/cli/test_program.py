"""What may go wrong in every command: a wrong value of an option, a path that cannot be used, a missing folder."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_operator.cli.main import app

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "red-grpo.yaml"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("model", "tiny", "sd4", "m"), "no model family 'sd4'; choose flux, "),
        (("fit", "a.yaml", "--device", "h10"), "for '--device': 'h10' is not one of 'a100-40g'"),
        (("run", "a.yaml", "--steps", "many"), "for '--steps': 'many' is not a whole number"),
        (("run", "a.yaml", "--steps", "9" * 5000), "is not a whole number with fewer digits"),
        (("run", "a.yaml", "--patience", "long"), "for '--patience': 'long' is not a number"),
        (("run", "a.yaml", "--patience", "nan"), "for '--patience': nan must be at least 0"),
        (("open", "a", "--port", "70000"), "for '--port': 70000 must be at most 65535"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(arguments: tuple[str, ...], said: str) -> None:
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert "Value error" not in refused.stderr and "Input should" not in refused.stderr


@pytest.mark.parametrize("command", ["logs", "watch", "why"])
def test_a_command_for_a_cluster_names_the_log_of_a_run_on_this_machine(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "train.log").touch()
    none = f"--kubeconfig={tmp_path / 'none'}"
    refused = [CliRunner().invoke(app, [command, name, none]) for name in ("mine", "other")]
    assert [invoked.exit_code for invoked in refused] == [2, 2]
    assert "cannot use the kubeconfig" in refused[0].stderr
    assert "read runs/mine/train.log, or run drl report mine" in refused[0].stderr
    assert "on this machine" not in refused[1].stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "NAME"),
        ("report", "a", "--runs", "NAME"),
        ("init", "sd35", "--out", "NAME"),
        ("model", "tiny", "sd3", "NAME"),
        ("why", "a", "--kubeconfig", "NAME"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line(arguments: tuple[str, ...]) -> None:
    name = "n" * 300
    refused = CliRunner().invoke(app, [name if word == "NAME" else word for word in arguments])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"cannot use {name}") and refused.stderr.endswith(": File name too long\n")


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    refused = CliRunner().invoke(app, ["render", str(EXAMPLE)])
    message = "the working directory does not exist any more: change to another folder\n"
    assert (refused.exit_code, refused.stderr) == (2, message)


@pytest.mark.parametrize(("charset", "shown"), [("utf-8", "→"), ("latin-1", "\\u2192")])
def test_a_character_that_the_terminal_does_not_have_is_shown_by_its_number(charset: str, shown: str) -> None:
    result = CliRunner(charset=charset).invoke(app, ["render", str(EXAMPLE), "--set", "spec.data.train=[→.jsonl]"])
    assert result.exit_code == 0
    assert f"/{shown}.jsonl" in result.stdout


def test_a_file_name_that_is_not_utf_8_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    path = tmp_path / os.fsdecode(b"\xff.yaml")
    path.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", "--cluster", str(path)])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/\\udcff.yaml: red-grpo is valid\n")
