"""`drl fit`: where a job is to fit, refusals, and the text of an estimate."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from control.api.small_job import GOOD
from omni_operator.cli.machine import fit, fit_text, machine_facts, training_stack
from omni_operator.cli.main import app

JOB = f"{GOOD}    accelerator: {{vendor: NVIDIA}}\n"
GIB = 1 << 30


def estimate(**changes: Any) -> dict[str, Any]:
    """A small estimate, as the trainer's program prints it."""
    small = {
        "architecture": "WanPipeline",
        "parameters": 2_000_000_000,
        "trained_parameters": 1_500_000,
        "device": [
            {"name": "generation", "bytes": 3 * GIB, "parts": {"weights": GIB, "VAE": 2 * GIB}},
            {"name": "update", "bytes": 5 * GIB, "parts": {"weights": GIB, "activations": 4 * GIB}},
        ],
        "host": [{"name": "start", "bytes": 6 * GIB, "parts": {"processes": 6 * GIB}}],
        "moved": {"samples to the trainers": 3 << 20},
        "engine_batch": 8,
        "sample_bytes": 1,
        "capacity": 8 * GIB,
        "reserve": 0.08,
        "peak": 5 * GIB,
        "fits": True,
        "advice": [],
        "not_needed": [],
    }
    return {**small, **changes}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job for NVIDIA accelerators, on a machine without any and with the training stack."""
    monkeypatch.setattr(machine_facts, "find_accelerators", lambda: ())
    monkeypatch.setattr(training_stack, "missing_stack", list)
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def answer_with(monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], code: int = 0) -> list[list[str]]:
    """The command lines that would have been run; each prints the document."""
    commands: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code, f"noise\n{json.dumps(document)}\n", "no such model\n")

    monkeypatch.setattr(subprocess, "run", answer)
    return commands


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that would have been run; each prints `estimate()`."""
    return answer_with(monkeypatch, estimate())


def drl_fit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


ASCEND = ("--set", "spec.trainer.accelerator.vendor=Ascend")
SEPARATE = ("--set", "spec.rollout.placement=Separate")


def pools(*, rollout: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A small estimate of two pools, as the trainer's program prints it for accelerators."""
    small = estimate()
    names = ("device", "host", "capacity", "peak", "fits", "advice", "not_needed")
    trainer = {name: small.pop(name) for name in names}
    return {**small, "pools": {"trainer": {**trainer, **changes}, "rollout": {**trainer, **(rollout or {})}}}


@pytest.fixture
def two_pools(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that would have been run; each prints `pools()`."""
    return answer_with(monkeypatch, pools())


def option(command: list[str], name: str) -> int:
    return int(command[command.index(name) + 1])


def test_each_pool_has_its_own_device_and_the_layout_of_its_pods(job: Path, two_pools: list[list[str]]) -> None:
    more = ("spec.rollout.replicas=3", "spec.rollout.accelerator={vendor: NVIDIA, count: 4}")
    arguments = (*SEPARATE, *(word for assignment in more for word in ("--set", assignment)))
    result = drl_fit(job, "--device", "h100-80g", "--rollout-device", "l40s-48g", "--json", *arguments)
    assert result.exit_code == 0, result.output
    (command,) = two_pools
    assert option(command, "--capacity") == fit.memory_of(fit.Device.H100_80G)
    assert option(command, "--rollout-capacity") == fit.memory_of(fit.Device.L40S_48G)
    settings = command[command.index("--") + 1 :]
    rollout = "actor_rollout_ref.rollout"
    pods = {f"{rollout}.nnodes=3", f"{rollout}.n_gpus_per_node=4", f"{rollout}.node_resource=omni_rollout"}
    assert pods <= set(settings)
    estimates = json.loads(result.stdout)
    targets = {name: pool["target"] for name, pool in estimates["pools"].items()}
    assert targets == {"trainer": "h100-80g", "rollout": "l40s-48g"}
    assert (estimates["fits"], estimates["host_fits"]) == (True, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "910b-64g"), "--device: 910b-64g is of Ascend, and spec.trainer.accelerator.vendor is NVIDIA: "),
        (
            ("--device", "h100-80g", "--rollout-device", "910b-32g", *SEPARATE),
            "910b-32g is of Ascend, and spec.rollout.accelerator.vendor is NVIDIA: name one of a100-40g, a100-80g, ",
        ),
        (
            ("--device", "h100-80g", "--set", "spec.rollout.accelerator.vendor=Ascend", *SEPARATE),
            "the rollout pods have accelerators of Ascend: name the one to check for with --rollout-device "
            "(910b-32g, 910b-64g)",
        ),
        (
            ("--rollout-device", "h200-141g", "--device", "h100-80g"),
            "--rollout-device: with spec.rollout.placement: Colocated",
        ),
        (
            ("--rollout-device", "h200-141g", "--set", "spec.trainer.accelerator.vendor=CPU", *SEPARATE),
            "name the accelerator of the trainer too",
        ),
    ],
)
def test_a_device_that_the_jobs_pods_cannot_have_is_refused(
    job: Path, two_pools: list[list[str]], arguments: tuple[str, ...], said: str
) -> None:
    result = drl_fit(job, *arguments)
    assert (result.exit_code, result.stdout, two_pools) == (2, "", [])
    assert said in result.stderr


@pytest.mark.parametrize(
    ("trainer", "rollout", "fits"),
    [(True, True, True), (True, False, False), (False, True, False), (None, True, None), (False, None, False)],
)
def test_a_job_fits_if_both_pools_do(
    job: Path, monkeypatch: pytest.MonkeyPatch, trainer: bool | None, rollout: bool | None, fits: bool | None
) -> None:
    answer_with(monkeypatch, pools(fits=trainer, rollout={"fits": rollout}))
    result = drl_fit(job, "--device", "h100-80g", "--json", *SEPARATE)
    assert json.loads(result.stdout)["fits"] is fits
    assert result.exit_code == (1 if fits is False else 0)


def test_the_text_has_a_verdict_for_each_pool_and_what_to_change_in_it(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "actor_rollout_ref.rollout.max_num_seqs"
    advice = [{"setting": setting, "value": 4, "costs": "smaller", "peak": 7 * GIB, "fits": True}]
    answer_with(monkeypatch, pools(rollout={"fits": False, "peak": 9 * GIB, "advice": advice}))
    pods = ("--set", "spec.rollout.replicas=2", "--set", "spec.rollout.accelerator={vendor: NVIDIA, count: 4}")
    lines = drl_fit(job, "--device", "h100-80g", "--rollout-device", "l40s-48g", *SEPARATE, *pods).stdout.splitlines()
    tables = ("trainer: the accelerator", "trainer: host", "rollout: each of 8 accelerators", "rollout: host of the")
    assert [name for name in tables if not any(line.startswith(name) for line in lines)] == ["rollout: host of the"]
    peak = "of 8.00 GiB at the peak, of which 8% should stay free"
    trainer = lines.index(f"a-job: the trainer pool fits on h100-80g: 5.00 {peak}")
    assert lines[trainer + 1] == f"a-job: the rollout pool does not fit on l40s-48g: 9.00 {peak}"
    assert "spec.rollout.engine.maxBatchSize: 4" in lines[trainer + 3]


def test_the_memory_limits_of_both_kinds_of_pods_are_checked(job: Path, two_pools: list[list[str]]) -> None:
    limits = {"trainer": "8Gi", "rollout": "3Gi"}  # 2Gi of shared memory on top; 6 GiB are needed
    arguments = (f"--set=spec.{name}.resources.limits={{memory: {size}}}" for name, size in limits.items())
    result = drl_fit(job, "--device", "h100-80g", *SEPARATE, *arguments)
    assert result.exit_code == 1
    limit = "6.00 GiB, and the pod's limit is 5.00 GiB; raise spec.rollout.resources.limits"
    assert f"the rollout host does not fit: {limit}" in result.stdout
    assert "the trainer host" not in result.stdout
    more = ("--set=spec.rollout.sharedMemory.sizeLimit=4Gi", "--set=spec.rollout.resources.limits={memory: 3Gi}")
    larger = drl_fit(job, "--device", "h100-80g", *SEPARATE, *more, "--json")
    pools = json.loads(larger.stdout)["pools"]
    assert (pools["rollout"]["host_capacity"], pools["rollout"]["host_fits"]) == (7 * GIB, True)
    assert pools["trainer"]["host_fits"] is None


def test_on_the_cpu_this_machine_has_both_pools(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = estimate(capacity=8 * GIB)
    pool = {"device": [], "host": document.pop("host")}
    document |= {"pools": {"trainer": pool, "rollout": pool}}
    del document["device"]
    commands = answer_with(monkeypatch, document)
    result = drl_fit(job, "--set", "spec.trainer.accelerator.vendor=CPU", *SEPARATE)
    assert result.exit_code == 0, result.output
    assert "--cpu" in commands[0] and "--rollout-capacity" not in commands[0]
    assert "a-job fits on this machine, with both pools: 5.00 of 8.00 GiB at the peak" in result.stdout


def test_without_the_accelerator_of_the_job_the_device_must_be_named(job: Path) -> None:
    result = drl_fit(job)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "this machine has no NVIDIA accelerator" in result.stderr and "h100-80g" in result.stderr
    assert "910b" not in result.stderr, "a device of another vendor is refused"


def test_the_estimate_gets_the_memory_of_the_device_and_the_settings_of_the_job(
    job: Path, commands: list[list[str]]
) -> None:
    pods = ("--set=spec.trainer.replicas=2", "--set=spec.rollout.replicas=2")
    assert drl_fit(job, "--device", "910b-64g", *ASCEND, *pods).exit_code == 0
    (command,) = commands
    assert command[:3] == [sys.executable, "-m", fit.PROGRAM]
    assert option(command, "--capacity") == 64 * GIB and "--cpu" not in command
    settings = command[command.index("--") + 1 :]
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=1"} <= set(settings)
    assert f"actor_rollout_ref.model.path={job.parent / 'model'}" in settings


def test_an_accelerator_of_this_machine_is_used(
    job: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerators = machine_facts.Accelerators("NVIDIA", 2, ("NVIDIA X, 1000 MiB, 1", "NVIDIA Y, 900 MiB, 1"))
    monkeypatch.setattr(machine_facts, "find_accelerators", lambda: (accelerators,))
    assert drl_fit(job).exit_code == 0
    assert option(commands[0], "--capacity") == 900 << 20


def test_another_trainer_is_refused(job: Path) -> None:
    result = drl_fit(job, "--device", "h100-80g", "--set", "spec.algorithm.entrypoint=[python3, mine.py]")
    assert result.exit_code == 2
    assert "spec.algorithm.entrypoint" in result.stderr


@pytest.mark.parametrize(("code", "exit_code"), [(2, 2), (1, 1), (-9, 1)])
def test_a_failed_estimate_shows_its_error(
    job: Path, monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int
) -> None:
    answer_with(monkeypatch, {}, code)
    result = drl_fit(job, "--device", "h100-80g")
    assert (result.exit_code, result.stderr) == (exit_code, "no such model\n")


def test_the_text_has_every_part_of_every_phase_and_the_verdict() -> None:
    small_estimate = {**estimate(), "job": "a-job", "target": "x", "host_capacity": None, "host_fits": None}
    small_estimate["not_estimated"] = ["spec.reward.model"]
    two_of_four = fit_text.Pods(hosts=2, devices=4)
    one_device = fit_text.Pods(hosts=1, devices=1)
    lines = fit_text.render(small_estimate, two_of_four, one_device).splitlines()
    assert any(line.startswith("each of 8 accelerators") for line in lines)
    pooled = {**small_estimate, "pools": dict.fromkeys(("trainer", "rollout"), small_estimate)}
    text = fit_text.render(pooled, two_of_four, one_device).splitlines()
    (head,) = [line for line in text if line.startswith("trainer: each of 8 accelerators (GiB)")]
    (total, *_) = [line for line in text[text.index(head) :] if line.startswith("  total")]
    assert len(head) == len(total), "numbers are below the names of their phases"
    assert [line.split() for line in lines if "activations" in line] == [["activations", "4.00"]]
    assert [line.split() for line in lines if line.strip().startswith("weights")] == [["weights", "1.00", "1.00"]]
    assert lines[-1] == "not estimated: spec.reward.model, which uses the same accelerators"
    assert not any("not needed" in line for line in lines)
    assert "a-job fits on x: 5.00 of 8.00 GiB at the peak, of which 8% should stay free" in lines
    small = {**small_estimate, "parameters": 663_000, "trained_parameters": 900, "moved": {"weights": 3 << 39}}
    lines = fit_text.render(small, one_device, one_device).splitlines()
    assert lines[0].endswith(", 663 thousand parameters, 900 of them trained")
    assert any(line.split() == ["weights", "1.50", "TiB"] for line in lines)
    large = {**small_estimate, "parameters": 20_600_000_000, "trained_parameters": 188_700_000}
    assert ", 20.6 billion parameters, 189 million of them trained" in fit_text.render(large, one_device, one_device)
    on_hosts = {**small_estimate, "device": []}
    assert "a-job fits on x, with all 2 pods: 5.00" in fit_text.render(on_hosts, two_of_four, one_device)
    offload = {"setting": "actor_rollout_ref.rollout.offload_text_encoders", "costs": "a copy", "peak": 6 * GIB}
    needless = fit_text.render({**small_estimate, "not_needed": [offload]}, one_device, one_device).splitlines()
    heading = needless.index("not needed to fit, and slower:")
    assert " ".join(needless[heading + 1].split()) == (
        "spec.rollout.engine.offloadTextEncoders: true without it 6.00 GiB (a copy)"
    )
    unknown = {**small_estimate, "capacity": None, "fits": None}
    assert "the memory of x is unknown" in fit_text.render(unknown, one_device, one_device)
