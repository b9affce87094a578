"""What `drl fit` advises is valid in a job, and does what it says in the trainer."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.cli.machine.fit_text import change_text
from verl_omni.trainer import startup
from verl_omni.trainer.memory_estimate import advice
from verl_omni.trainer.settings import configuration

HEADS = 4  # attention heads of the model, which the program finds in its configuration
MODEL = Path(__file__).parents[2] / "examples" / "shapes-sd3"
JOB = f"""\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {{name: a-job}}
spec:
  model: {{base: {MODEL}}}
  data: {{train: [t.jsonl]}}
  reward: {{scorers: [{{name: jpeg}}]}}
  algorithm: {{overrides: []}}
  trainer: {{totalSteps: 3, accelerator: {{vendor: NVIDIA}}}}
"""
SIDES = ("spec.rollout.pipeline.height=472", "spec.rollout.pipeline.width=512")
SEPARATE = "spec.rollout={placement: Separate, replicas: 2, accelerator: {vendor: NVIDIA, count: 4}}"


def trainer_settings(path: Path, assignments: list[str]) -> DictConfig:
    job = load_job(path, assignments).job
    config = configuration.load(plan.render_overrides(job, plan.pod_layout(job, "runs")))
    accelerator = job.spec.trainer.accelerator.vendor != "CPU"
    startup.fit_to_machine(config, accelerator, cpus=8 if accelerator else None)
    return config


def in_a_job(change: advice.Change, overrides: list[str]) -> list[str]:
    """What is printed, as a user writes it to a job that has these overrides, which the change completes."""
    field, _, value = change_text(change.setting, change.value).partition(": ")
    if field == "add to spec.algorithm.overrides":
        overrides.append(value)
        field = "spec.algorithm.overrides"
        value = f"[{', '.join(overrides)}]"
    _, _, needed = change.costs.partition("; needs ")
    return [f"{field}={value}", *([needed.replace(": ", "=")] if needed else [])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "assignments",
    [
        [*SIDES, "spec.model.lora={enabled: false}"],
        [
            "spec.trainer.batch.prompts=6",
            "spec.rollout.samplesPerPrompt=3",
            "spec.trainer.accelerator.count=2",
            "spec.rollout.replicas=2",
        ],
        ["spec.algorithm.name=DiffusionDPO", "spec.trainer.batch.prompts=4", "spec.rollout.samplesPerPrompt=4"],
        ["spec.trainer.accelerator.count=4", "spec.rollout.replicas=4"],
        [SEPARATE, "spec.trainer.accelerator.count=4"],
        ["spec.trainer.accelerator.vendor=CPU", *SIDES],
    ],
    ids=["all weights", "odd batch", "preferences", "shared", "separate", "CPU"],
)
def test_a_job_that_follows_the_advice_has_the_settings_that_were_estimated(
    tmp_path: Path, assignments: list[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    config = trainer_settings(path, assignments)
    tried = set[str]()
    overrides = list[str]()
    followed = {text.partition("=")[0]: text for text in assignments}
    while change := next((advised for advised in advice.changes(config, HEADS) if str(advised) not in tried), None):
        tried.add(str(change))
        OmegaConf.update(config, change.setting, change.value)
        followed |= {text.partition("=")[0]: text for text in in_a_job(change, overrides)}
        loaded = OmegaConf.select(trainer_settings(path, list(followed.values())), change.setting)
        assert loaded == change.value, change
        assert not change.setting.endswith(("height", "width")) or change.value >= advice.SMALLEST_SIDE
    assert len(tried) > 3
