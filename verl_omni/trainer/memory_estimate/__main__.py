"""Command line of the estimate: `python -m verl_omni.trainer.memory_estimate [options] name=value ...` prints JSON."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_omni.trainer import startup
from verl_omni.trainer.memory_estimate import public_models
from verl_omni.trainer.output import inputs
from verl_omni.trainer.settings import configuration

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from verl_omni.trainer.memory_estimate.estimate import Estimate, Phase
    from verl_omni.trainer.memory_estimate.job_estimate import JobEstimate

OK = 0
USAGE_ERROR = 2
MANY_CPUS = 1 << 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the estimate. Returns the exit code: 0, also for a job that does not fit, or 2 for invalid settings."""
    parser = argparse.ArgumentParser(prog="python -m verl_omni.trainer.memory_estimate", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="all parts are in host memory; default: on accelerators")
    parser.add_argument("--capacity", type=int, help="bytes of one accelerator, or with --cpu of the host")
    parser.add_argument("--rollout-capacity", type=int, help="bytes of one accelerator of standalone replicas")
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="settings of the trainer")
    chosen = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="drl-fit-") as folder:
            config = load_settings(chosen.overrides, Path(folder), accelerator=not chosen.cpu)
            capacity = (chosen.capacity, chosen.rollout_capacity)
            document = describe(config, *capacity, accelerator=not chosen.cpu)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    print(json.dumps(document))
    return OK


def load_settings(overrides: Sequence[str], folder: Path, *, accelerator: bool) -> DictConfig:
    """The trainer's settings on a machine with or without accelerators.

    A model path that is the id of a public model is replaced by `folder`, with that model's configuration files.

    Raises:
        SettingsError: invalid settings.
        FileNotFoundError, ValueError: the model is neither a folder in diffusers' layout nor a known model id, or its
            family is not supported.
    """
    config = configuration.load(overrides)
    path = config.actor_rollout_ref.model.path
    if path in public_models.MODELS:
        public_models.write(path, folder)
        config.actor_rollout_ref.model.path = str(folder)
    elif not Path(path).is_dir():
        raise FileNotFoundError(_not_found(path))
    # The CPUs of nodes with accelerators are not known here: the estimate takes as many workers as there may be.
    startup.fit_to_machine(config, accelerator, cpus=MANY_CPUS if accelerator else None)
    return config


def _not_found(path: str) -> str:
    if path.startswith(inputs.PREFIX):
        return (
            f"{path} is in a store, and drl fit reads configuration files of this machine: copy the *.json files of "
            "the model to a folder, and write ./FOLDER (--set spec.model.base=./FOLDER)"
        )
    known = ", ".join(public_models.MODELS)
    return (
        f"{path} is not a folder, and its configuration is not built in. Built in are {known}. For another model, "
        "download its configuration files (hf download ID --include '*.json' --local-dir FOLDER) and write ./FOLDER"
    )


def describe(
    config: DictConfig, capacity: int | None, rollout_capacity: int | None = None, *, accelerator: bool
) -> dict[str, Any]:
    """The estimate of a job as JSON data, sizes in bytes.

    With standalone replicas, `pools` has the phases of each pool, and on accelerators whether it fits; on the CPU one
    machine has both.

    Args:
        capacity: bytes of a device, or without accelerators of the host; None: unknown, so there is no verdict.
        rollout_capacity: bytes of a device of standalone replicas, on accelerators; None: unknown.
    """
    from verl_omni.trainer.memory_estimate import advice
    from verl_omni.trainer.memory_estimate.estimate import RESERVE
    from verl_omni.trainer.memory_estimate.job_estimate import JobEstimator

    estimated = JobEstimator(accelerator=accelerator).estimate
    job = estimated(config)
    document: dict[str, Any] = {
        "architecture": config.actor_rollout_ref.model.architecture,
        "parameters": job.trainer.parameters,
        "trained_parameters": job.trainer.trained_parameters,
        "engine_batch": job.engine.batch if job.setup.generation else None,
        "sample_bytes": job.setup.stored // job.setup.samples if job.setup.samples else None,
        "moved": dict(job.estimate.moved),
        "reserve": RESERVE,
    }
    if job.standalone is None:
        return {**document, **_phases(job.estimate), **_verdict(config, job, estimated, _sizes, capacity)}
    trainer = _phases(job.estimate)
    standalone = _phases(job.standalone)
    if not accelerator:
        together = _verdict(config, job, estimated, _sizes, capacity)
        return {**document, "pools": {"trainer": trainer, "rollout": standalone}, **together}
    trainer |= _verdict(config, job, estimated, lambda of: _totals(of.estimate.device), capacity, advice.of_trainer)
    standalone |= _verdict(config, job, estimated, _rollout_sizes, rollout_capacity, advice.of_rollout)
    return {**document, "pools": {"trainer": trainer, "rollout": standalone}}


def _verdict(
    config: DictConfig,
    found: JobEstimate,
    estimate: Callable[[DictConfig], JobEstimate],
    sizes_of: Callable[[JobEstimate], dict[str, int]],
    capacity: int | None,
    concerns: Callable[[str], bool] = lambda _: True,
) -> dict[str, Any]:
    """Whether a device, or a host without accelerators, holds all phases, and what to change, or not needed.

    Args:
        sizes_of: bytes of each phase.
        concerns: whether a setting may lower these phases.
    """
    from verl_omni.trainer.memory_estimate import advice
    from verl_omni.trainer.memory_estimate.estimate import fits

    sizes = sizes_of(found)
    verdict = None if capacity is None else fits(max(sizes.values()), capacity)
    advised: tuple[advice.Advice, ...] = ()
    not_needed: tuple[advice.NotNeeded, ...] = ()
    if capacity is not None:

        def phases_of(other: DictConfig) -> dict[str, int]:
            return sizes_of(estimate(other))

        def is_enough(size: int) -> bool:
            return fits(size, capacity)

        if verdict:
            not_needed = advice.not_needed(config, phases_of, is_enough, concerns)
        else:
            advised = advice.advise(config, sizes, phases_of, is_enough, concerns, found.divisible)
    return {
        "capacity": capacity,
        "peak": max(sizes.values()),
        "fits": verdict,
        "advice": [
            {**asdict(entry.change), "phase": entry.phase, "peak": entry.peak, "fits": entry.fits} for entry in advised
        ],
        "not_needed": [{**asdict(entry.change), "peak": entry.peak} for entry in not_needed],
    }


def _sizes(found: JobEstimate) -> dict[str, int]:
    """Phases of a device; without accelerators of one machine that has all hosts, of both pools if there are two."""
    estimate = found.estimate
    standalone = found.standalone
    if estimate.device:
        return _totals(estimate.device)
    trainer = {phase.name: found.setup.nodes * phase.total for phase in estimate.host}
    if standalone is None or found.pool is None:
        return trainer
    rollout = {phase.name: found.pool.nodes * phase.total for phase in standalone.host}
    peaks = max(trainer.values()), max(rollout.values())
    return {
        **{f"{name} of the trainer": size + peaks[1] for name, size in trainer.items()},
        **{f"{name} of the engines": peaks[0] + size for name, size in rollout.items()},
    }


def _rollout_sizes(found: JobEstimate) -> dict[str, int]:
    assert found.standalone is not None
    return _totals(found.standalone.device)


def _totals(phases: Sequence[Phase]) -> dict[str, int]:
    return {phase.name: phase.total for phase in phases}


def _phases(found: Estimate) -> dict[str, Any]:
    return {"device": [_phase(phase) for phase in found.device], "host": [_phase(phase) for phase in found.host]}


def _phase(phase: Phase) -> dict[str, Any]:
    return {"name": phase.name, "bytes": phase.total, "parts": dict(phase.parts)}


if __name__ == "__main__":
    startup.prepare_environment(has_accelerator=False)  # nothing runs here but fake tensors, on the CPU
    sys.exit(main())
