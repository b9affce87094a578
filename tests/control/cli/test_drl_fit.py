"""`drl fit`: where a job is to fit, refusals, and the text of an estimate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omni_operator.cli import devices, fit, fit_text, machine, training_stack
from omni_operator.cli.main import app

JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: ./model}
  data: {train: [train.jsonl]}
  reward: {scorers: [{name: jpeg}]}
  trainer: {accelerator: {vendor: NVIDIA}, totalSteps: 3}
"""
GIB = 1 << 30


def estimate(**changes: Any) -> dict[str, Any]:
    """A small estimate, as the trainer's program prints it."""
    made = {
        "architecture": "WanPipeline", "parameters": 2_000_000_000, "trained_parameters": 1_500_000,
        "device": [
            {"name": "generation", "bytes": 3 * GIB, "parts": {"weights": GIB, "VAE": 2 * GIB}},
            {"name": "update", "bytes": 5 * GIB, "parts": {"weights": GIB, "activations": 4 * GIB}},
        ],
        "host": [{"name": "start", "bytes": 6 * GIB, "parts": {"processes": 6 * GIB}}],
        "moved": {"samples to the trainers": 3 << 20}, "engine_batch": 8, "sample_bytes": 1, "capacity": 8 * GIB,
        "reserve": 0.08, "peak": 5 * GIB, "fits": True, "advice": [],
    }  # fmt: skip
    return {**made, **changes}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job for NVIDIA accelerators, on a machine without any and with the training stack."""
    monkeypatch.setattr(machine, "find_accelerators", lambda: ())
    monkeypatch.setattr(training_stack, "missing_stack", list)
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that would have been run; each prints `estimate()`."""
    found: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        found.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(estimate()), "")

    monkeypatch.setattr(subprocess, "run", answer)
    return found


def drl_fit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def test_an_unknown_device_is_refused_with_the_known_ones(job: Path) -> None:
    result = drl_fit(job, "--device", "h300")
    assert result.exit_code == 2
    assert [each.value for each in devices.Device if f"'{each.value}'" not in result.stderr] == []


def test_engines_in_pods_of_their_own_have_no_estimate(job: Path, commands: list[list[str]]) -> None:
    result = drl_fit(job, "--device", "h100-80g", "--set", "spec.rollout.placement=Separate")
    assert (result.exit_code, result.stdout, commands) == (2, "", [])
    assert "spec.rollout.placement: drl fit can only estimate Colocated" in result.stderr


def test_without_the_accelerator_of_the_job_the_device_must_be_named(job: Path) -> None:
    result = drl_fit(job)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "this machine has no NVIDIA accelerator" in result.stderr and "h100-80g" in result.stderr


def test_the_estimate_gets_the_memory_of_the_device_and_the_settings_of_the_job(
    job: Path, commands: list[list[str]]
) -> None:
    arguments = ("--device", "910b-64g", "--set", "spec.trainer.replicas=2", "--set", "spec.rollout.replicas=2")
    assert drl_fit(job, *arguments).exit_code == 0
    (command,) = commands
    assert command[:3] == [sys.executable, "-m", fit.PROGRAM]
    assert command[command.index("--capacity") + 1] == str(64 * GIB) and "--cpu" not in command
    settings = command[command.index("--") + 1 :]
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=1"} <= set(settings)
    assert f"actor_rollout_ref.model.path={job.parent / 'model'}" in settings


def test_a_job_on_the_cpu_is_checked_against_the_memory_of_this_machine(job: Path, commands: list[list[str]]) -> None:
    assert drl_fit(job, "--set", "spec.trainer.accelerator.vendor=CPU").exit_code == 0
    assert "--cpu" in commands[0]
    assert int(commands[0][commands[0].index("--capacity") + 1]) > 0


def test_an_accelerator_of_this_machine_is_used(
    job: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine.Accelerators("NVIDIA", 2, ("NVIDIA X, 1000 MiB, 1", "NVIDIA Y, 900 MiB, 1"))
    monkeypatch.setattr(machine, "find_accelerators", lambda: (here,))
    assert drl_fit(job).exit_code == 0
    assert commands[0][commands[0].index("--capacity") + 1] == str(900 << 20)


@pytest.mark.parametrize("names", [(), ("NVIDIA X",), ("NVIDIA X, 10 MiB, 1", "NVIDIA Y")])
def test_memory_that_no_tool_reports_is_unknown(names: tuple[str, ...]) -> None:
    assert devices.reported_memory(names) is None


def test_another_trainer_is_refused(job: Path) -> None:
    result = drl_fit(job, "--device", "h100-80g", "--set", "spec.algorithm.entrypoint=[python3, mine.py]")
    assert result.exit_code == 2
    assert "spec.algorithm.entrypoint" in result.stderr


@pytest.mark.parametrize(("code", "exit_code"), [(2, 2), (1, 1), (-9, 1)])
def test_a_failed_estimate_shows_its_error(
    job: Path, monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], code, "", "no such model\n"))
    result = drl_fit(job, "--device", "h100-80g")
    assert (result.exit_code, result.stderr) == (exit_code, "no such model\n")


def test_the_exit_code_and_json_say_whether_the_job_fits(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verdict, code in ((True, 0), (False, 1)):
        document = json.dumps(estimate(fits=verdict))
        monkeypatch.setattr(
            subprocess, "run", lambda *a, said=document, **k: subprocess.CompletedProcess([], 0, f"noise\n{said}\n", "")
        )
        result = drl_fit(job, "--device", "h100-80g", "--json")
        assert result.exit_code == code
        assert json.loads(result.stdout)["fits"] is verdict
        assert json.loads(result.stdout)["target"] == "h100-80g"


def test_a_host_beyond_the_limit_of_its_pod_does_not_fit(job: Path, commands: list[list[str]]) -> None:
    limit = "spec.trainer.resources.limits={memory: %s}"
    assert drl_fit(job, "--device", "h100-80g", "--set", limit % "4Gi").exit_code == 0, "2Gi of shared memory on top"
    result = drl_fit(job, "--device", "h100-80g", "--set", limit % "3Gi")
    assert result.exit_code == 1
    assert "raise spec.trainer.resources.limits.memory" in result.stdout


def test_the_text_has_every_part_of_every_phase_and_the_verdict() -> None:
    found = {**estimate(), "job": "a-job", "target": "x", "host_capacity": None, "host_fits": None, "not_estimated": []}
    lines = fit_text.render(found, hosts=2, devices=4).splitlines()
    assert any(line.startswith("each of 8 devices") for line in lines)
    assert [line.split() for line in lines if "activations" in line] == [["activations", "4.00"]]
    assert [line.split() for line in lines if line.strip().startswith("weights")] == [["weights", "1.00", "1.00"]]
    assert "a-job fits on x: 5.00 of 8.00 GiB at the peak, of which 8% should stay free" in lines
    unknown = fit_text.render({**found, "capacity": None, "fits": None}, hosts=1, devices=1)
    assert "the memory of x is unknown" in unknown


def test_advice_is_in_the_words_of_a_job() -> None:
    micro = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    offload = "actor_rollout_ref.actor.fsdp_config.param_offload"
    advice = [
        {"setting": micro, "value": 1, "costs": "time", "peak": 9 * GIB, "fits": False},
        {"setting": offload, "value": True, "costs": "copies", "peak": 7 * GIB, "fits": True},
    ]
    found = {
        **estimate(fits=False, advice=advice),
        "job": "j",
        "target": "x",
        "host_capacity": None,
        "host_fits": None,
        "not_estimated": [],
    }
    text = fit_text.render(found, hosts=1, devices=1)
    assert "spec.trainer.batch.microBatchSamples: 1" in text
    assert f"spec.algorithm.overrides: [{offload}=true]" in text and "7.00 GiB, fits" in text
    assert "even then" not in text
    assert "even then it does not fit" in fit_text.render({**found, "advice": advice[:1]}, hosts=1, devices=1)
    assert "no setting known" in fit_text.render({**found, "advice": []}, hosts=1, devices=1)
