"""What would make a local run fail after minutes, said before it starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from omni_operator.api import DiffusionRLJob
from omni_operator.api.training import ENTRYPOINT
from omni_operator.api.validation_messages import format_path
from omni_operator.api.yaml_document import Document, Problem
from omni_operator.api.yaml_document import Path as Field
from omni_operator.plan.overrides import PYTHONS

from .machine import Devices
from .training_stack import INSTALL


def problems(
    job: DiffusionRLJob, document: Document, devices: Sequence[Devices], missing_stack: Sequence[str]
) -> Iterator[Problem]:
    """Problems of a job with absolute paths on a machine with these devices."""
    for at, text in (*_command(job), *_model(job), *_files(job), *_devices(job, devices)):
        yield Problem(document.where(at), text, format_path(at))
    if missing_stack and job.spec.algorithm.entrypoint == ENTRYPOINT:
        yield Problem("this machine", f"{', '.join(missing_stack)} not installed: {INSTALL}")


def _command(job: DiffusionRLJob) -> Iterator[tuple[Field, str]]:
    program = job.spec.algorithm.entrypoint[0]
    if program not in PYTHONS and shutil.which(program) is None:
        yield ("spec", "algorithm", "entrypoint"), f"there is no program {program!r} here"


def _model(job: DiffusionRLJob) -> Iterator[tuple[Field, str]]:
    model, at = job.spec.model, ("spec", "model", "base")
    if not model.base_is_folder:
        yield (
            at,
            (
                f"{model.base!r} is a model id; a run on this machine needs a folder: "
                f"hf download {model.base} --local-dir FOLDER, then write ./FOLDER"
            ),
        )
    elif not (Path(model.base) / "model_index.json").is_file():
        yield (
            at,
            (
                f"no model in {model.base} (no model_index.json); "
                f"`drl model shapes PATH` and `drl model tiny sd3 PATH` make one without a network"
            ),
        )


def _files(job: DiffusionRLJob) -> Iterator[tuple[Field, str]]:
    data = job.spec.data
    for name, files in (("train", data.train), ("validation", data.validation)):
        for place, path in enumerate(files):
            if not os.access(path, os.R_OK) or not Path(path).is_file():
                yield ("spec", "data", name, place), f"there is no readable file {path}"
    for place, scorer in enumerate(job.spec.reward.scorers):
        function = scorer.function
        if function and not function.path.startswith("pkg://") and not Path(function.path).is_file():
            yield ("spec", "reward", "scorers", place, "function", "path"), f"there is no file {function.path}"


def _devices(job: DiffusionRLJob, devices: Sequence[Devices]) -> Iterator[tuple[Field, str]]:
    vendor, wanted = job.spec.trainer.accelerator.vendor, job.spec.trainer.devices
    here = {found.vendor: found.count for found in devices}
    at = ("spec", "trainer", "accelerator", "vendor")
    if vendor in (None, "CPU"):
        if vendor is None and devices and wanted > devices[0].count:
            at = ("spec", "trainer", "accelerator", "count")
            yield at, f"{wanted} devices wanted, this machine has {devices[0].count} ({devices[0].vendor})"
    elif vendor not in here:
        yield at, f"this machine has no {vendor} device; CPU runs on its processor"
    elif wanted > here[vendor]:
        yield at, f"{wanted} {vendor} devices wanted, this machine has {here[vendor]}"
