"""`drl fit`: estimate the memory that a job needs, before it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.training import ENTRYPOINT
from omni_operator.plan.quantity import whole

from . import console, devices, fit_text, machine, training_stack
from .devices import Device
from .options import Assignments, JobFile, Json, job_folder

PROGRAM = "verl_omni.trainer.memory_estimate"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job is to fit.

    Attributes:
        name: for the output. accelerator: whether it has accelerators.
        capacity: bytes of each, or without accelerators of the host; None if unknown.
    """

    name: str
    accelerator: bool
    capacity: int | None


def fit(
    job_file: JobFile,
    device: Annotated[
        Device | None,
        typer.Option(
            "--device",
            help="Accelerator to check for. Default: that of this machine; without any, this machine's memory.",
        ),
    ] = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Estimate a job's peak memory on each device and host, without running it.

    Reads only the configuration files of the model. Exit code 1: the job does not fit.
    """
    loaded = console.load_or_refuse(job_file, assignments or ())
    job = plan.resolve_paths(loaded.job, str(job_folder(job_file)))
    if job.spec.algorithm.entrypoint != ENTRYPOINT:
        console.refuse("spec.algorithm.entrypoint: drl fit can only estimate the project's own trainer")
    if job.spec.rollout.separate:
        console.refuse(
            "spec.rollout.placement: drl fit can only estimate Colocated, where engine and trainer share accelerators; "
            "with Separate each of them has more memory"
        )
    target = _target(job, device)
    if missing := training_stack.missing_stack():
        console.refuse(training_stack.missing_text(missing))
    found = _estimate(job, target)
    judge = job.spec.reward.model
    found |= {"job": job.metadata.name, "target": target.name, **_host_verdict(job, found)}
    found["not_estimated"] = ["spec.reward.model"] if judge and not judge.separate else []
    if as_json:
        console.say(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        console.say(fit_text.render(found, job.spec.trainer.replicas, job.spec.trainer.accelerator.count))
    if found["fits"] is False or found["host_fits"] is False:
        raise typer.Exit(console.FAILED)


def _target(job: DiffusionRLJob, device: Device | None) -> Target:
    """The named device, or what `drl run` would use here."""
    if device is not None:
        return Target(device.value, accelerator=True, capacity=devices.memory(device))
    vendor = job.spec.trainer.accelerator.vendor
    here = () if vendor in ("CPU", "Mock") else machine.find_accelerators()
    mine = next((found for found in here if vendor in (None, found.vendor)), None)
    if mine is None and vendor not in (None, "CPU", "Mock"):
        known = ", ".join(each.value for each in Device)
        console.refuse(f"this machine has no {vendor} accelerator: name the one to check for with --device ({known})")
    if mine is None:
        return Target("this machine", accelerator=False, capacity=machine.inspect_machine(Path()).memory)
    return Target(mine.vendor, accelerator=True, capacity=devices.reported_memory(mine.names))


def _estimate(job: DiffusionRLJob, target: Target) -> dict[str, Any]:
    """Run the estimate in a process of its own, because this package does not import the training stack."""
    spec = job.spec.trainer
    layout = plan.RunLayout("runs", nodes=spec.replicas, accelerators_per_node=spec.accelerator.count)
    options = [] if target.accelerator else ["--cpu"]
    if target.capacity is not None:
        options += ["--capacity", str(target.capacity)]
    command = [sys.executable, "-m", PROGRAM, *options, "--", *plan.render_overrides(job, layout)]
    # The estimate needs no accelerator, and must not touch one.
    environment = {**os.environ, "TQDM_DISABLE": "1", "VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        console.refuse(result.stderr.strip(), console.USAGE if result.returncode == console.USAGE else console.FAILED)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def _host_verdict(job: DiffusionRLJob, found: dict[str, Any]) -> dict[str, Any]:
    """Whether the host's peak is within the memory limit of a pod; None without a limit."""
    resources = job.spec.trainer.resources
    limit = resources.limits.get("memory")
    if limit is None:
        return {"host_capacity": None, "host_fits": None}
    # The size of shared memory is added to the pod's limit (docs/job.md).
    capacity = whole(limit) + whole(job.spec.trainer.shared_memory.size_limit)
    peak = max(phase["bytes"] for phase in found["host"])
    return {"host_capacity": capacity, "host_fits": peak <= capacity}
