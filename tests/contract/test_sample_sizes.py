"""`drl validate` and the trainer refuse the same heights, widths and ranks, for a model in a local folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_operator.api import JobError, read_job
from omni_operator.api.files.yaml_document import Document
from omni_operator.cli import sample_size
from omni_operator.cli.local.preflight import file_problems
from verl_omni.models.tiny import MAKERS
from verl_omni.pipelines.sample_shapes import size_check
from verl_omni.settings_schema.declarations import out_of_range

JOB = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {{name: a-job}}
spec:
  model: {{base: {model}}}
  data: {{train: [{model}/rows.jsonl]}}
  reward: {{scorers: [{{name: jpeg}}]}}
  trainer: {{totalSteps: 3}}
  rollout: {{pipeline: {{height: 40, width: 64}}}}
  algorithm:
    name: FlowGRPO
    overrides: [actor_rollout_ref.rollout.val_kwargs.pipeline.width=72]
"""


@pytest.mark.slow  # makes tiny models
@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"qwen3_vl"}))
def test_both_refuse_the_same_sizes(name: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    architecture = json.loads((tmp_path / "model_index.json").read_text())["_class_name"]
    sides = range(8, 2048, 8)
    check = size_check(architecture, tmp_path)
    trainer = [check(side, None) for side in sides]
    operator = [sample_size.find_problem(tmp_path, side) for side in sides]
    assert [problem is None for problem in operator] == [problem is None for problem in trainer]
    assert {problem is None for problem in operator} == {True, False}


def test_a_job_of_a_local_model_is_refused_with_the_field(tmp_path: Path) -> None:
    files = {
        "model_index.json": {"_class_name": "WanPipeline"},
        "transformer/config.json": {"patch_size": [1, 2, 2]},
        "vae/config.json": {"scale_factor_spatial": 8},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "red"}\n')
    text = JOB.format(model=tmp_path)
    found = file_problems(read_job(text, "job.yaml").job, Document.parse(text, "job.yaml"))
    assert {problem.field: problem.text for problem in found} == {
        "spec.rollout.pipeline.height": "must be a multiple of 16 for this model, not 40; write 32",
        "spec.algorithm.overrides[0]": (
            "actor_rollout_ref.rollout.val_kwargs.pipeline.width: must be a multiple of 16 for this model, not 72; "
            "write 64"
        ),
    }
    (tmp_path / "model_index.json").write_text('{"_class_name": "MyPipeline"}')
    assert not list(file_problems(read_job(text, "job.yaml").job, Document.parse(text, "job.yaml")))


def test_a_rank_is_at_most_the_trainers() -> None:
    most = next(rank for rank in range(1, 10_000) if out_of_range("actor_rollout_ref.model.lora_rank", rank + 1))
    text = JOB.format(model="./model")
    assert read_job(text, "job.yaml", [f"spec.model.lora.rank={most}"]).job.spec.model.lora.rank == most
    with pytest.raises(JobError, match=f"{most}"):
        read_job(text, "job.yaml", [f"spec.model.lora.rank={most + 1}"])
