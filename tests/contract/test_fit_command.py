"""`drl fit` and the program that it starts agree about options, settings and the JSON between them."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_operator.cli.machine import machine_facts
from omni_operator.cli.main import app
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: %s}
  data: {train: [train.jsonl]}
  reward: {scorers: [{name: jpeg}]}
  rollout: {samplesPerPrompt: 2, pipeline: {height: 256, width: 256, steps: 3}, engine: {maxBatchSize: 2}}
  trainer: {accelerator: {vendor: NVIDIA}, totalSteps: 3, batch: {prompts: 1}}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _fit_in_this_process: None) -> Path:
    """A job with the id of a public model."""
    monkeypatch.setattr(machine_facts, "find_accelerators", lambda: ())
    path = tmp_path / "job.yaml"
    path.write_text(JOB % "Wan-AI/Wan2.1-T2V-1.3B-Diffusers")
    return path


def documented_names() -> set[str]:
    """Names of the JSON that the page lists."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "fit.md").read_text(encoding="utf-8")
    section = page.partition("\n## JSON\n")[2].partition("\n## ")[0]
    return {name.partition(".")[0] for name in re.findall(r"`([a-z_.]+)`", section)}


@pytest.mark.slow  # a real model's shapes: a quarter of a minute
def test_a_public_model_is_estimated_from_its_id(job: Path) -> None:
    large = CliRunner().invoke(app, ["fit", str(job), "--device", "h200-141g", "--json"])
    assert large.exit_code == 0, large.output
    estimate = json.loads(large.stdout)
    assert estimate["fits"] is True
    # 1.4 billion parameters in the engine and in the trainer, 5.7 billion of the text encoder, in bfloat16.
    generation = next(phase for phase in estimate["device"] if phase["name"] == "generation")["parts"]
    assert 2.6e9 < generation["engine transformer"] < 3.2e9 and 2.6e9 < generation["weights"] < 3.2e9
    assert 11e9 < generation["text encoders"] < 12e9
    assert estimate.keys() | {"pools", "phase"} <= documented_names()
    assert {name for entry in estimate["not_needed"] for name in entry} == {"setting", "value", "costs", "peak"}


@pytest.mark.slow
def test_two_pools_are_estimated_each_for_its_device(job: Path, tmp_path: Path) -> None:
    make_tiny_sd3(tmp_path / "model")
    settings = {
        "model.base": "./model",
        "trainer.resources.limits": "{memory: 64Gi}",
        "rollout.placement": "Separate",
        "rollout.replicas": "2",
        "rollout.accelerator": "{vendor: NVIDIA, count: 2}",
        "rollout.engine.tensorParallelSize": "2",
    }
    assignments = [f"--set=spec.{name}={value}" for name, value in settings.items()]
    devices = ("--device", "h100-80g", "--rollout-device", "l40s-48g")
    result = CliRunner().invoke(app, ["fit", str(job), *devices, *assignments, "--json"])
    assert result.exit_code == 0, result.output
    estimate = json.loads(result.stdout)
    trainer = estimate["pools"]["trainer"]
    rollout = estimate["pools"]["rollout"]
    assert (trainer["target"], rollout["target"], estimate["fits"]) == ("h100-80g", "l40s-48g", True)
    assert (trainer["host_fits"], rollout["host_fits"]) == (True, None)
    names = {
        name: {part for phase in pool["device"] for part in phase["parts"]} for name, pool in estimate["pools"].items()
    }
    assert {"weights", "optimizer", "activations"} <= names["trainer"] - names["rollout"]
    assert {"engine transformer", "text encoders", "VAE", "weight buffer"} <= names["rollout"] - names["trainer"]
    assert estimate["moved"]["weights to all replicas"] == 2 * estimate["moved"]["weights to each replica"] > 0
    assert {*estimate, *trainer, *rollout} <= documented_names()
    text = CliRunner().invoke(app, ["fit", str(job), *devices, *assignments]).stdout
    assert "rollout: each of 4 accelerators" in text and "a-job: the rollout pool fits on l40s-48g" in text
    cpu = {"model.base": "./model", "rollout.placement": "Separate", "trainer.accelerator.vendor": "CPU"}
    alone = CliRunner().invoke(app, ["fit", str(job), *(f"--set=spec.{name}={value}" for name, value in cpu.items())])
    assert "on this machine, with both pools" in alone.stdout, alone.output


@pytest.mark.slow
def test_a_batch_size_among_the_settings_of_the_engine_is_that_of_the_estimate(job: Path, tmp_path: Path) -> None:
    make_tiny_sd3(tmp_path / "model")
    samples = {"model.base": "./model", "trainer.batch.prompts": "8"}

    def activations(*changes: str) -> int:
        assignments = [*(f"spec.{name}={value}" for name, value in samples.items()), *changes]
        arguments = ["fit", str(job), "--device", "h100-80g", "--json", *(f"--set={change}" for change in assignments)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        phases = json.loads(result.stdout)["device"]
        return int(next(phase for phase in phases if phase["name"] == "generation")["parts"]["engine activations"])

    engine = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.max_num_seqs"
    sixty_four = activations("spec.rollout.engine.maxBatchSize=64")
    field = activations("spec.rollout.engine.maxBatchSize=4")
    override = f"spec.algorithm.overrides=[{engine}=4]"
    assert activations("spec.rollout.engine.maxBatchSize=64", override) == field < sixty_four / 2


def test_an_invalid_model_is_refused_in_the_words_of_the_program(job: Path) -> None:
    result = CliRunner().invoke(app, ["fit", str(job), "--device", "h100-80g", "--set", "spec.model.base=some/model"])
    assert result.exit_code == 2
    assert "some/model is not a folder, and its configuration is not built in" in result.stderr
