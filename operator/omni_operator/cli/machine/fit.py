"""`drl fit`: estimate the memory that a job needs, before it runs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.spec.pods import Resources, SharedMemory
from omni_operator.api.spec.training import ENTRYPOINT
from omni_operator.cli import console
from omni_operator.cli.options import Assignments, JobFile, Json, job_folder
from omni_operator.plan.pods.quantity import whole

from . import fit_text, machine_facts, training_stack

MIB = 1 << 20
PROGRAM = "verl_omni.trainer.memory_estimate"
ANY_DEVICE = (None, "CPU", "Mock")  # vendors of jobs that compute on the CPU, or anywhere: any device may be checked


class Device(str, Enum):
    """Accelerators whose memory is known."""

    A100_40G = "a100-40g"
    A100_80G = "a100-80g"
    H100_80G = "h100-80g"
    H200_141G = "h200-141g"
    L40S_48G = "l40s-48g"
    ASCEND_910B_32G = "910b-32g"
    ASCEND_910B_64G = "910b-64g"


# As the drivers report it (nvidia-smi, npu-smi), in MiB: less than the name says where ECC or the maker's units take
# some of it.
_MIB = {
    Device.A100_40G: 40960,
    Device.A100_80G: 81920,
    Device.H100_80G: 81559,
    Device.H200_141G: 143771,
    Device.L40S_48G: 46068,
    Device.ASCEND_910B_32G: 32768,
    Device.ASCEND_910B_64G: 65536,
}


def vendor_of(device: Device) -> str:
    """Vendor of a device, as `accelerator.vendor` of a job names it."""
    return "Ascend" if device in (Device.ASCEND_910B_32G, Device.ASCEND_910B_64G) else "NVIDIA"


def memory_of(device: Device) -> int:
    """Bytes of one device."""
    return _MIB[device] * MIB


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job, or one of its pools, is to fit.

    Attributes:
        name: for the output. vendor: of the accelerators; None without any.
        capacity: bytes of each, or without accelerators of the host; None if unknown.
    """

    name: str
    vendor: str | None
    capacity: int | None


def fit(
    job_file: JobFile,
    device: Annotated[
        Device | None,
        typer.Option(
            "--device",
            help="Accelerator to check for. Default: this machine's; without any, the machine's memory.",
        ),
    ] = None,
    rollout_device: Annotated[
        Device | None,
        typer.Option(
            "--rollout-device",
            help="Accelerator of the rollout pods, with spec.rollout.placement: Separate. Default: like the trainer's.",
        ),
    ] = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Estimate a job's peak memory, without running it.

    Example: drl fit job.yaml --device h100-80g

    The estimate is for each accelerator and host. Reads only the configuration files of the model. Exit code 1: the
    job does not fit.
    """
    loaded = console.load_or_refuse(job_file, assignments or ())
    job = plan.resolve_paths(loaded.job, str(job_folder(job_file)))
    if job.spec.algorithm.entrypoint != ENTRYPOINT:
        console.refuse("spec.algorithm.entrypoint: drl fit can only estimate the project's own trainer")
    target = _target(job, device)
    rollout = _rollout_target(job, target, rollout_device)
    if missing := training_stack.missing_stack():
        console.refuse(training_stack.missing_text(missing))
    estimate = _estimate(job, target, rollout)
    estimate |= {"job": job.metadata.name, **_verdicts(job, estimate, target, rollout)}
    judge = job.spec.reward.model
    estimate["not_estimated"] = ["spec.reward.model"] if judge and not judge.separate else []
    if as_json:
        console.say_json(estimate)
    else:
        console.say(fit_text.render(estimate, *_pods(job)))
    if estimate["fits"] is False or estimate["host_fits"] is False:
        raise typer.Exit(console.FAILED)


def _target(job: DiffusionRLJob, device: Device | None) -> Target:
    """The named device, or what `drl run` would use here."""
    vendor = job.spec.trainer.accelerator.vendor
    if device is not None:
        _check_vendor("--device", device, "spec.trainer.accelerator.vendor", vendor)
        return Target(device.value, vendor_of(device), memory_of(device))
    here = () if vendor in ("CPU", "Mock") else machine_facts.find_accelerators()
    mine = next((accelerators for accelerators in here if vendor in (None, accelerators.vendor)), None)
    if mine is None and vendor not in ANY_DEVICE:
        known = _devices_of(vendor)
        console.refuse(f"this machine has no {vendor} accelerator: name the one to check for with --device ({known})")
    if mine is None:
        return Target("this machine", None, machine_facts.inspect_machine(Path()).memory)
    return Target(mine.vendor, mine.vendor, _reported_memory(mine.names))


def _rollout_target(job: DiffusionRLJob, trainer: Target, device: Device | None) -> Target:
    """The device named for rollout pods, or the trainer's device."""
    vendor = job.spec.rollout_accelerator.vendor
    if device is None:
        if job.spec.rollout.separate and trainer.vendor and vendor not in (*ANY_DEVICE, trainer.vendor):
            console.refuse(
                f"the rollout pods have accelerators of {vendor}: name the one to check for with --rollout-device "
                f"({_devices_of(vendor)})"
            )
        return trainer
    if not job.spec.rollout.separate:
        console.refuse(
            "--rollout-device: with spec.rollout.placement: Colocated, engines run on the trainer's accelerators; "
            "remove it, or write placement: Separate"
        )
    if trainer.vendor is None:
        console.refuse("--rollout-device: name the accelerator of the trainer too, with --device")
    _check_vendor("--rollout-device", device, "spec.rollout.accelerator.vendor", vendor)
    return Target(device.value, vendor_of(device), memory_of(device))


def _reported_memory(names: tuple[str, ...]) -> int | None:
    """Bytes of the smallest device in lines of nvidia-smi, `name, N MiB, driver`; None if a line has no memory."""
    amounts = [_memory_in(line) for line in names]
    return min((size for size in amounts if size is not None), default=None) if None not in amounts else None


def _memory_in(line: str) -> int | None:
    for part in line.split(", "):
        number, _, unit = part.partition(" ")
        if unit == "MiB" and number.isdigit():
            return int(number) * MIB
    return None


def _devices_of(vendor: str | None) -> str:
    """Devices of a vendor, for a message."""
    return ", ".join(device.value for device in Device if vendor_of(device) == vendor)


def _check_vendor(option: str, device: Device, field: str, wanted: str | None) -> None:
    """Refuse a device whose vendor differs from the vendor of the job's pods."""
    vendor = vendor_of(device)
    if wanted not in (*ANY_DEVICE, vendor):
        console.refuse(
            f"{option}: {device.value} is of {vendor}, and {field} is {wanted}: name one of "
            f"{_devices_of(wanted)}, or change the job (--set {field}={vendor})"
        )


def _estimate(job: DiffusionRLJob, target: Target, rollout: Target) -> dict[str, Any]:
    """Run the estimate in a separate process, because this package does not import the training stack."""
    options = [] if target.vendor else ["--cpu"]
    if target.capacity is not None:
        options += ["--capacity", str(target.capacity)]
    if job.spec.rollout.separate and rollout.vendor and rollout.capacity is not None:
        options += ["--rollout-capacity", str(rollout.capacity)]
    overrides = plan.render_overrides(job, plan.pod_layout(job, "runs"))
    result = training_stack.run_module(PROGRAM, [*options, "--", *overrides])
    if result.returncode:
        console.refuse(result.stderr.strip(), console.USAGE if result.returncode == console.USAGE else console.FAILED)
    return json.loads(result.stdout.splitlines()[-1])


def _verdicts(job: DiffusionRLJob, found: dict[str, Any], target: Target, rollout: Target) -> dict[str, Any]:
    """Where the job is to fit, and whether hosts and devices do; with two pools, of each of them and of both."""
    spec = job.spec.trainer
    trainer = (spec.resources, spec.shared_memory)
    if "pools" not in found:
        return {"target": target.name, **_host_verdict(*trainer, found["host"])}
    engines = (job.spec.rollout.resources or Resources(), job.spec.rollout.shared_memory or SharedMemory())
    pools = {name: dict(pool) for name, pool in found["pools"].items()}
    for name, where, pod in (("trainer", target, trainer), ("rollout", rollout, engines)):
        pools[name] |= {**({"target": where.name} if where.vendor else {}), **_host_verdict(*pod, pools[name]["host"])}
    hosts = _all_fit(pool["host_fits"] for pool in pools.values())
    if target.vendor is None:
        return {"target": target.name, "pools": pools, "host_fits": hosts}
    return {"pools": pools, "fits": _all_fit(pool["fits"] for pool in pools.values()), "host_fits": hosts}


def _all_fit(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one does not fit; otherwise None if that is unknown of one."""
    kinds = set(verdicts)
    return False if False in kinds else None if None in kinds else True


def _host_verdict(resources: Resources, shared_memory: SharedMemory, host: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the host's peak is within the memory limit of a pod; None without a limit."""
    limit = resources.limits.get("memory")
    if limit is None:
        return {"host_capacity": None, "host_fits": None}
    # The size of shared memory is added to the pod's limit (docs/reference/job.md).
    capacity = whole(limit) + whole(shared_memory.size_limit)
    return {"host_capacity": capacity, "host_fits": max(phase["bytes"] for phase in host) <= capacity}


def _pods(job: DiffusionRLJob) -> tuple[fit_text.Pods, fit_text.Pods]:
    """The trainer's pods, and the rollout pods, which count only if engines have separate pods."""
    trainer = job.spec.trainer
    rollout = job.spec.rollout
    return (
        fit_text.Pods(trainer.replicas, trainer.accelerator.count),
        fit_text.Pods(rollout.replicas, job.spec.rollout_accelerator.count),
    )
