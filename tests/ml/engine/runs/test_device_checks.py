"""`drl doctor --gpu`: every check of a device, with the real engine; on the CPU too, so that no check is untested."""

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from omni_operator.cli.machine import device_checks, doctor, machine_facts
from tests.ml.engine import forked_program
from verl_omni.pipelines.registry import FOLDERS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CHECKS = [
    "device",
    *(f"{name} in bfloat16" for name, family in FOLDERS.items() if not family.input_images),
    "memory and speed",
    "engine",
    "training step",
    "weight sync",
    "agreement after it",
]


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("npu", marks=pytest.mark.npu)]
)
def test_every_check_of_a_device_passes(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without an accelerator the parts are forks; the test below starts a part as users do.
    pipes = {"PIPE": subprocess.PIPE, "STDOUT": subprocess.STDOUT}
    monkeypatch.setattr(device_checks, "subprocess", SimpleNamespace(Popen=forked_program.start, **pipes))
    doctor.check_device(device, as_json=True)
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    texts = {check["name"]: check["text"] for check in report["checks"]}
    assert list(texts) == CHECKS and report["ready"]
    assert ("shared memory" if device == "cpu" else "IPC of the device") in texts["weight sync"]
    assert "TFLOP/s" in texts["memory and speed"]


def test_a_device_that_torch_does_not_have_fails_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    if machine_facts.find_accelerators():
        pytest.skip("this machine has an accelerator")
    with pytest.raises(typer.Exit) as ended:
        doctor.check_device("cuda", as_json=False)
    assert ended.value.exit_code == 1
    output = capsys.readouterr().out
    assert output.startswith("FAILED  device: CheckFailed: torch") and output.endswith("not ready: device failed\n"), (
        output
    )
