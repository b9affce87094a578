"""`drl validate` finds rows without prompts, without the training stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_operator.cli.local.prompt_rows import find_problem
from omni_operator.cli.main import app

GOOD = b'{"prompt": "red"}\n'
WRONG_PROMPT = "column prompt: a prompt must be text or a list of messages"
PARQUET = b"PAR1" + b"\0" * 8 + b"PAR1"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.jsonl", GOOD),
        ("p.jsonl", b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\r\n" + GOOD),
        ("p.jsonl", GOOD + '{"prompt": "one\u2028two"}'.encode()),
        ("p.jsonl", b'{"prompt": [{"role": "user", "content": "red"}]}\n'),
        ("p.jsonl", b'[{"prompt": "red"}]'),
        ("p.json", b'[{"text": "left to the trainer"}]'),
        ("p.parquet", PARQUET),
        ("p.txt", b"red\n\ngreen"),
    ],
)
def test_usable_files_are_accepted(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_problem(tmp_path / name, "prompt") is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.jsonl", GOOD + b'{"text": "red"}\n', "line 2: there is no column 'prompt'; its columns: text"),
        ("p.jsonl", b"{}\n", "line 1: there is no column 'prompt'; its columns: none"),
        ("p.jsonl", GOOD + b'\n{"prompt": null}\n', f"line 3: {WRONG_PROMPT}"),
        ("p.jsonl", b'{"prompt": []}', f"line 1: {WRONG_PROMPT}"),
        ("p.jsonl", GOOD + b"red\n", "line 2: not valid JSON: Expecting value, column 1"),
        ("p.jsonl", GOOD + b'"red"\n', "line 2: a row must be a mapping of columns"),
        ("p.jsonl", b"[" * 200_000 + b"\n", None),
        ("p.jsonl", b'{"prompt": ' + b"[" * 200_000 + b"\n", "line 1: nested too deeply"),
        ("p.jsonl", b" \n\n", "has no rows"),
        ("p.txt", b" \n\n", "has no rows"),
        ("p.jsonl", b'{"prompt": "caf\xe9"}', "is not a text file in UTF-8"),
        ("p.parquet", b"", "is not a Parquet file, or only a part of one"),
        ("p.parquet", b"PAR1PAR1", "is not a Parquet file, or only a part of one"),
        ("p.parquet", PARQUET[:-1], "is not a Parquet file, or only a part of one"),
    ],
)
def test_the_first_row_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes, said: str | None
) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_problem(tmp_path / name, "prompt") == said


JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: ./model}
  data:
    train: [good.jsonl, bad.jsonl]
  reward: {scorers: [{name: jpeg}]}
  trainer: {totalSteps: 3}
"""


@pytest.mark.parametrize(
    ("overrides", "valid"),
    [("", False), ("data.prompt_key=text", True), ("data.custom_cls.path=own.py", True)],
)
def test_validate_names_job_line_file_and_row(tmp_path: Path, overrides: str, valid: bool) -> None:
    key = "text" if "text" in overrides else "prompt"
    (tmp_path / "good.jsonl").write_text(f'{{"{key}": "red"}}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "red"}\n')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_index.json").write_text("{}")
    algorithm = f"  algorithm: {{overrides: [{overrides}]}}\n" if overrides else ""
    (tmp_path / "job.yaml").write_text(JOB + algorithm)
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "job.yaml")])
    assert done.exit_code == (0 if valid else 2), done.stderr
    said = f"{tmp_path}/job.yaml:7: spec.data.train[1]: {tmp_path}/bad.jsonl: line 1: there is no column 'prompt'; "
    assert valid or done.stderr == f"{said}its columns: text\n"


def test_validate_takes_the_job_among_other_objects_and_names_them(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "red"}\n')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_index.json").write_text("{}")
    (tmp_path / "job.yaml").write_text(f"kind: ConfigMap\nmetadata: {{name: rewards}}\n---\n{JOB}")
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "job.yaml")])
    assert done.exit_code == 0 and f"{tmp_path}/job.yaml: a-job is valid" in done.stdout
    note = f"note: {tmp_path}/job.yaml: not read, because drl takes the job alone: ConfigMap rewards (line 1)\n"
    assert done.stderr == note
