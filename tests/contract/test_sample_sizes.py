"""`drl validate` refuses the heights, widths and ranks that the trainer refuses, for a model in a local folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_operator.api import JobError, read_job
from omni_operator.api.files.yaml_document import Document
from omni_operator.cli.local.preflight import file_problems
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
        "spec.rollout.pipeline.height": "must be a multiple of 16, not 40; write 32",
        "spec.algorithm.overrides[0]": (
            "actor_rollout_ref.rollout.val_kwargs.pipeline.width: must be a multiple of 16, not 72; write 64"
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
