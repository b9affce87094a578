"""`drl validate` says what the trainer's first check would say about the files that a job names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow import Table, parquet
from typer.testing import CliRunner

from control.cli.document_blocks import ROOT
from omni_operator.cli.main import app
from verl_omni.models.tiny import MAKERS

pytestmark = pytest.mark.slow

JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: ./model, lora: {startFrom: ./sft}}
  data: {train: [train.parquet, more.jsonl], validation: [heldout.txt]}
  reward: {scorers: [{name: jpeg}]}
  algorithm: {name: DiffusionDPO, overrides: [algorithm.sample_source=offline, data.prompt_key=caption]}
  trainer: {totalSteps: 3}
"""
VIDEO_JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: ./model}
  data: {train: [train.jsonl], validation: [heldout.jsonl]}
  rollout: {pipeline: {height: 32, width: 32}}
  reward: {scorers: [{name: jpeg}]}
  algorithm: {name: FlowGRPO}
  trainer: {totalSteps: 3, batch: {prompts: 2}, accelerator: {vendor: CPU}}
"""
PAIR = {"caption": "a", "jpg_0": b"x", "jpg_1": b"y", "label_0": 1.0}


def write(folder: Path, row: dict[str, Any] | None = None) -> Path:
    """A job with all its files; its adapter has rank 2, of a layer of the example model."""
    import torch
    from safetensors.torch import save_file

    shutil.copytree(ROOT / "examples" / "shapes-sd3", folder / "model")
    (folder / "sft").mkdir()
    layer = "transformer.transformer_blocks.0.attn.to_q"
    values = {f"{layer}.lora_A.weight": torch.ones(2, 64), f"{layer}.lora_B.weight": torch.ones(64, 2)}
    save_file(values, folder / "sft" / "pytorch_lora_weights.safetensors")
    parquet.write_table(Table.from_pylist([row or PAIR]), folder / "train.parquet")
    for name in ("w.png", "l.png"):
        (folder / name).touch()
    (folder / "more.jsonl").write_text(json.dumps({"caption": "a", "chosen": "w.png", "rejected": "l.png"}))
    (folder / "heldout.txt").write_text("red\n")
    (folder / "job.yaml").write_text(JOB)
    return folder / "job.yaml"


def problems(job: Path) -> list[str]:
    result = CliRunner().invoke(app, ["validate", str(job)])
    notes = ("note: ", "warning: ")  # of the recipe
    lines = [
        line for line in result.output.splitlines() if not line.endswith(" problems") and not line.startswith(notes)
    ]
    assert result.exit_code == (0 if lines == [f"{job}: a-job is valid"] else 2)
    return [line.removeprefix(f"{job}:") for line in lines]


def test_a_job_whose_files_can_be_used_is_valid(tmp_path: Path) -> None:
    assert problems(write(tmp_path)) == [" a-job is valid"]


def test_columns_of_parquet_paths_of_pairs_and_rows_are_checked(tmp_path: Path) -> None:
    job = write(tmp_path, {"caption": "a", "img_win": "w.png", "image": "l.png"})
    (tmp_path / "w.png").unlink()
    (tmp_path / "heldout.txt").write_text('{"caption": "red"}\n')
    lines = problems(job)
    assert [line.partition(" ")[0] for line in lines] == ["6:"] * 3
    assert (
        "spec.data.train[0]: " in lines[0] and "the columns are caption, img_win, image, and a pair is in" in lines[0]
    )
    assert "spec.data.train[1]: " in lines[1] and lines[1].endswith("w.png, which does not exist")
    assert "spec.data.validation[0]: " in lines[2] and lines[2].endswith("name it .jsonl")


def test_files_of_the_model_and_the_adapter_are_checked(tmp_path: Path) -> None:
    job = write(tmp_path)
    job.write_text(JOB.replace("startFrom: ./sft", "startFrom: ./sft, rank: 4"))
    (problem,) = problems(job)
    assert problem.startswith("5: spec.model.lora.startFrom: ") and "lora_rank: 4, and the adapter" in problem
    (tmp_path / "model" / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    (problem,) = problems(job)
    assert (
        problem.startswith("5: spec.model.base: ")
        and "vae has no weights; complete the download: hf download" in problem
    )


def test_prompts_that_the_engine_would_refuse_are_found(tmp_path: Path) -> None:
    MAKERS["wan"](tmp_path / "model")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a red circle"}\n' * 8)
    (tmp_path / "heldout.jsonl").write_text('{"prompt": "red"}\n{"prompt": ""}\n')
    job = tmp_path / "job.yaml"
    job.write_text(VIDEO_JOB)
    (problem,) = problems(job)
    assert problem.startswith("6: spec.data.validation[0]: row 1 of data.val_files")
    assert problem.endswith("it is empty, and Wan needs a prompt")
    job.write_text(VIDEO_JOB.replace(", validation: [heldout.jsonl]", ""))
    assert problems(job) == [" a-job is valid"]
