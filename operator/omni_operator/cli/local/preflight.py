"""Checks before a local run: what would make it fail minutes later."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import FieldPath, is_in_store
from omni_operator.api.files.yaml_document import Document, Problem
from omni_operator.api.spec.reward import Function, Scorer
from omni_operator.api.spec.training import ENTRYPOINT
from omni_operator.api.validation_messages import format_path
from omni_operator.cli import console
from omni_operator.cli.machine.training_stack import missing_stack, missing_text, run_module
from omni_operator.plan.overrides import PYTHONS, render_overrides
from omni_operator.plan.pods.storage import HUB_ENDPOINT, HUB_OFFLINE, endpoint_problem, is_offline
from omni_operator.plan.run_layout import local_layout
from verl_omni.pipelines.registry import lent_folder
from verl_omni.pipelines.sample_shapes import size_check
from verl_omni.settings_schema.declarations import ALL_LINEAR

if TYPE_CHECKING:
    from omni_operator.cli.machine.machine_facts import Accelerators

PROMPT_SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")
CUSTOM_DATASET = "data.custom_cls."
SIDES = ("height", "width")
EVALUATED_SIDES = tuple(f"actor_rollout_ref.rollout.val_kwargs.pipeline.{side}" for side in SIDES)
REWARD_MANAGER = "reward.reward_manager."
PROMPT_KEY = "data.prompt_key"
EXTERNAL_LIB = "actor_rollout_ref.model.external_lib"
INPUT_CHECK = "verl_omni.trainer.data.input_check"


def file_problems(job: DiffusionRLJob, document: Document) -> Iterator[Problem]:
    """Files and programs that a job names and this machine does not have.

    Args:
        job: with absolute paths.
    """
    for at, text in (*_program(job), *_model(job), *_judge(job), *_sizes(job), *_prompts(job), *_functions(job)):
        yield Problem(document.where(at), text, format_path(at))


def variable_problems(job: DiffusionRLJob, document: Document, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Environment variables that keep a local run from what the job asks for."""
    if job.spec.sends_to_hub and is_offline(environment.get(HUB_OFFLINE)):
        at = ("spec", "output", "url")
        text = (
            f"is on the Hugging Face hub, and this shell sets {HUB_OFFLINE}={environment[HUB_OFFLINE]}: unset it, and "
            "only the results reach the hub; to check the job for a cluster, add --cluster to drl validate"
        )
        yield Problem(document.where(at), text, format_path(at))
    if problem := endpoint_problem(job, environment.get(HUB_ENDPOINT)):
        at = ("spec", "storage", "endpoint")
        yield Problem(document.where(at), problem, format_path(at))


def input_problems(job: DiffusionRLJob, document: Document) -> list[Problem]:
    """What the trainer's first check finds in the files of a job: model, adapter and rows of prompts.

    Nothing without the training stack, for another program or another class of data sets.

    Args:
        job: with absolute paths, which exist.
    """
    overrides = _overrides(job)
    custom = any(name.startswith(CUSTOM_DATASET) for name in overrides)
    if job.spec.algorithm.entrypoint != ENTRYPOINT or missing_stack():
        return []
    model = job.spec.model
    data = job.spec.data
    lora = model.lora
    targets = ALL_LINEAR if lora.target_modules == (ALL_LINEAR,) else list(lora.target_modules) or None
    settings = {
        "lora_adapter_path": lora.start_from,
        "lora_rank": lora.rank or 0,
        "lora_alpha": lora.alpha,
        "target_modules": targets,
    }
    paths = (*data.train, *data.validation)
    files = {
        name: {str(index): path for index, path in enumerate(listed) if not is_in_store(path) and not custom}
        for name, listed in (("train", data.train), ("validation", data.validation))
    }
    from verl_omni.trainer.data import input_check

    inputs = input_check.Inputs(
        model=model.base if model.base_is_folder else None,
        extended=EXTERNAL_LIB in overrides,
        adapter=settings if lora.start_from is not None else None,
        train=files["train"],
        validation=files["validation"],
        prompt_key=overrides.get(PROMPT_KEY, "prompt"),
        pairs=job.spec.algorithm.reads_pairs,
        settings=[] if any(map(is_in_store, paths)) or custom else render_overrides(job, local_layout(job, "runs")),
    )
    findings = list(input_check.file_problems(inputs))
    if not findings and input_check.needs_model(inputs):
        result = run_module(INPUT_CHECK, [json.dumps(asdict(inputs))])
        if result.returncode:
            return [Problem("this machine", f"the check of model and prompts failed: {result.stderr.strip()[-2000:]}")]
        findings = json.loads(result.stdout.splitlines()[-1])
    at: dict[str, FieldPath] = {
        "model": ("spec", "model", "base"),
        "adapter": ("spec", "model", "lora", "startFrom"),
        **{f"{name}/{index}": ("spec", "data", name, int(index)) for name in files for index in files[name]},
    }
    return [Problem(document.where(at[name]), text, format_path(at[name])) for name, text in findings]


def _overrides(job: DiffusionRLJob) -> dict[str, str]:
    """The job's overrides, values by name."""
    assignments = (text.lstrip("+").partition("=") for text in job.spec.algorithm.overrides)
    return {name: value.strip("'\"") for name, _, value in assignments}


def machine_problems(
    job: DiffusionRLJob, document: Document, accelerators: Sequence[Accelerators], missing: Sequence[str]
) -> Iterator[Problem]:
    """Accelerators and packages that a job needs and this machine does not have."""
    for at, text in _accelerators(job, accelerators):
        yield Problem(document.where(at), text, format_path(at))
    if missing and job.spec.algorithm.entrypoint == ENTRYPOINT:
        yield Problem("this machine", missing_text(missing))


def _program(job: DiffusionRLJob) -> Iterator[tuple[FieldPath, str]]:
    program = job.spec.algorithm.entrypoint[0]
    if program not in PYTHONS and shutil.which(program) is None:
        yield ("spec", "algorithm", "entrypoint"), f"no program {program!r} on this machine"


def _model(job: DiffusionRLJob) -> Iterator[tuple[FieldPath, str]]:
    model = job.spec.model
    at = ("spec", "model", "base")
    adapter = model.lora.start_from
    if adapter is not None and not Path(adapter).exists():
        yield ("spec", "model", "lora", "startFrom"), f"no file or folder {console.short_path(Path(adapter))}"
    if model.base_in_store:
        return  # the trainer downloads it
    if not model.base_is_folder:
        yield (
            at,
            f"{model.base!r} is a model id, which only the operator downloads; for a run on this machine download it "
            f"(hf download {model.base} --local-dir FOLDER) and write ./FOLDER; to check the job for a cluster, "
            "add --cluster to drl validate",
        )
    elif not (Path(model.base) / "model_index.json").is_file():
        folder = console.short_path(Path(model.base))
        word = shlex.quote(folder)
        yield (
            at,
            f"no model in {folder} (no model_index.json); to create one offline: "
            f"`drl model tiny {lent_folder()} {word}` (random weights) or "
            f"`drl model shapes {word}` (trained, takes minutes)",
        )


def _judge(job: DiffusionRLJob) -> Iterator[tuple[FieldPath, str]]:
    judge = job.spec.reward.model
    if judge and judge.base_is_folder and not Path(judge.base).is_dir():
        yield ("spec", "reward", "model", "base"), f"no folder {console.short_path(Path(judge.base))}"


def _sizes(job: DiffusionRLJob) -> Iterator[tuple[FieldPath, str]]:
    """Heights and widths that no sample of the model has, for training and in overrides for evaluations."""
    model = job.spec.model
    pipeline = job.spec.rollout.pipeline
    algorithm = job.spec.algorithm
    if not model.base_is_folder or algorithm.entrypoint != ENTRYPOINT:
        return
    sides: list[tuple[FieldPath, str, str, int]] = [
        (("spec", "rollout", "pipeline", side), "", side, getattr(pipeline, side)) for side in SIDES
    ]
    for number, text in enumerate(algorithm.overrides):
        name, _, value = text.lstrip("+").partition("=")
        if name in EVALUATED_SIDES and value.strip().isdecimal():
            sides.append((("spec", "algorithm", "overrides", number), f"{name}: ", name.rpartition(".")[2], int(value)))
    try:
        index = json.loads((Path(model.base) / "model_index.json").read_text(encoding="utf-8"))
        check = size_check(index["_class_name"], Path(model.base))
    except (OSError, ValueError, LookupError, TypeError):
        return  # the trainer names the file
    for at, name, side, pixels in sides:
        if problem := check(*(pixels if dimension == side else None for dimension in SIDES)):
            yield at, f"{name}{problem.removeprefix(f'{side} ')}"


def _prompts(job: DiffusionRLJob) -> Iterator[tuple[FieldPath, str]]:
    data = job.spec.data
    custom = any(name.startswith(CUSTOM_DATASET) for name in _overrides(job))
    for name, files in (("train", data.train), ("validation", data.validation)):
        for index, path in enumerate(files):
            at = ("spec", "data", name, index)
            if is_in_store(path):
                continue  # the trainer downloads it
            if not os.access(path, os.R_OK) or not Path(path).is_file():
                yield at, f"no readable file {console.short_path(Path(path))}"
            elif not custom and not path.endswith(PROMPT_SUFFIXES):
                yield at, f"{Path(path).name!r} must end in {', '.join(PROMPT_SUFFIXES)}"


def _functions(job: DiffusionRLJob) -> Iterator[tuple[FieldPath, str]]:
    own_manager = any(name.startswith(REWARD_MANAGER) for name in _overrides(job))
    called = job.spec.algorithm.entrypoint == ENTRYPOINT and not own_manager
    for index, scorer in enumerate(job.spec.reward.scorers):
        if scorer.function and not scorer.function.path.startswith("pkg://"):
            for at, text in _function(scorer, scorer.function, called=called):
                yield ("spec", "reward", "scorers", index, *at), text
        if scorer.pool and scorer.pool.python and not os.access(scorer.pool.python, os.X_OK):
            at = ("spec", "reward", "scorers", index, "pool", "python")
            yield at, f"no interpreter {console.short_path(Path(scorer.pool.python))}"
        for setting, path in scorer.paths.items():
            if not Path(path).exists():
                at = ("spec", "reward", "scorers", index, "settings", setting)
                yield at, f"no file or folder {console.short_path(Path(path))}"


def _function(scorer: Scorer, function: Function, *, called: bool) -> Iterator[tuple[FieldPath, str]]:
    """What the trainer refuses of a user's file, which is not run, and of the settings for its function.

    Args:
        called: whether the function is called with the arguments of a scorer.
    """
    from verl_omni.reward_loop.scorer_signature import ScorerNotFound, signature_in_file

    file = Path(console.short_path(Path(function.path)))
    if not file.is_file():
        yield ("function", "path"), f"no file {file}"
        return
    if not called:
        return
    if file.suffix != ".py":
        yield ("function", "path"), f"{file} is not a Python file (.py)"
        return
    try:
        signature = signature_in_file(file, function.name)
    except ScorerNotFound as error:
        yield ("function", "path"), str(error)
        return
    if signature is not None:
        yield from ((("function", "name"), f"{function.name}: {text}") for text in signature.function_problems())
        set_by_pool = signature.settings & {"device"} if scorer.pool else set()
        for problem in signature.problems({*scorer.settings, *set_by_pool}):
            name, _, text = problem.partition(": ")
            yield ("settings", name), text


def _accelerators(job: DiffusionRLJob, accelerators: Sequence[Accelerators]) -> Iterator[tuple[FieldPath, str]]:
    spec = job.spec
    vendor = job.spec.trainer.accelerator.vendor
    pools: dict[FieldPath, str | None] = {
        ("rollout",): spec.rollout_accelerator.vendor,
        ("reward", "model"): spec.judge_accelerator.vendor,
    }
    for index, scorer in enumerate(spec.reward.scorers):
        if scorer.pool and scorer.pool.accelerator:
            pools["reward", "scorers", index, "pool"] = scorer.pool.accelerator.vendor
    for pool, pool_vendor in pools.items():
        if pool_vendor != vendor:
            yield (
                ("spec", *pool, "accelerator", "vendor"),
                f"is {pool_vendor}: a local run uses accelerators of one vendor, and the trainer's are {vendor}",
            )
    wanted = spec.trainer.accelerators + spec.rollout_accelerators + spec.judge_accelerators
    wanted += spec.scorer_accelerators
    available = {kind.vendor: kind.count for kind in accelerators}
    at = ("spec", "trainer", "accelerator", "vendor")
    if vendor in (None, "CPU"):
        if vendor is None and accelerators and wanted > accelerators[0].count:
            first = accelerators[0]
            at = ("spec", "trainer", "accelerator", "count")
            yield at, f"the job needs {wanted} accelerators; this machine has {first.count} ({first.vendor})"
    elif vendor not in available:
        yield at, f"this machine has no {vendor} accelerator; to run on the CPU, write vendor: CPU"
    elif wanted > available[vendor]:
        yield at, f"the job needs {wanted} {vendor} accelerators; this machine has {available[vendor]}"
