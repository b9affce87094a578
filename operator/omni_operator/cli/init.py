"""`drl init`: a commented job for a model family and a reward, made of a tested example."""

from __future__ import annotations

import io
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from omni_operator.api import JobError, read_job
from omni_operator.api.spec.scorers import asks_judge, builtin_scorers, is_builtin, settings_model
from verl_omni import pipelines
from verl_omni.pipelines.description import EXAMPLE_FILE
from verl_omni.pipelines.registry import FOLDERS
from verl_omni.reward_loop.rewards import modality

from . import console

JUDGE = "Qwen/Qwen3-VL-8B-Instruct"
PROMPTS = {"train": "prompts.jsonl", "validation": "heldout.jsonl"}
TEXTS = ("Open", "Second Chance", "Slow Down", "Summer Sale", "The Long Road", "Fresh Bread")
SCENES = {"train": ("a shop sign that says", "a birthday cake with the words"), "validation": ("a book cover titled",)}


# Families with a tested example (tools/init_jobs.py), by the names of their models.
FAMILIES = {each.example.name: (folder, each) for folder, each in FOLDERS.items() if each.example}


def init(
    family: Annotated[str, typer.Argument(help=f"Model family: {', '.join(sorted(FAMILIES))}.")],
    reward: Annotated[
        str | None,
        typer.Option(
            help="A built-in scorer, or a Python file with compute_score. Default: ocr; for videos pickscore.",
            metavar="SCORER|FILE.py",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder of the model, in the layout of diffusers. Default: its id on the hub.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File of the job; default: FAMILY-REWARD.yaml.", metavar="FILE.yaml")
    ] = None,
) -> None:
    """Write a commented job for a model family and a reward.

    Example: drl init sd35 --reward ocr --model ./sd35-medium

    Sample prompts are written into the same folder. Existing files are never overwritten.
    """
    if family not in FAMILIES:
        console.refuse(f"no model family {family!r}; choose {', '.join(sorted(FAMILIES))}")
    scorer = _scorer(reward or _default_reward(family), family)
    name = f"{family}-{scorer['name']}".replace("_", "-")
    path = out or Path(f"{name}.yaml")
    if path.exists():
        console.refuse(f"{path} exists: remove it, or give --out FILE.yaml")
    if function := scorer.get("function"):
        function["path"] = _from_folder(path.parent, function["path"])
    if model is not None and (model.startswith(".") or Path(model).is_dir()):
        model = _from_folder(path.parent, model)
    text = _job(family, name, scorer, model)
    try:
        read_job(text, str(path))
    except JobError as error:
        console.refuse(console.format_problems(error.problems))
    written = {path: text, **{path.parent / file: _prompts(use) for use, file in PROMPTS.items()}}
    for file, content in written.items():
        if file.exists():
            console.note(f"{file} exists, and is kept")
            continue
        try:
            file.write_text(content, encoding="utf-8")
        except OSError as error:
            console.refuse(f"cannot write {file}: {error.strerror}")
    console.say(f"wrote {path}; its prompts are {' and '.join(PROMPTS.values())}: replace the samples with your own")
    if model is None:
        console.say("to run it on this machine, download the model and write its folder into spec.model.base")
    console.say(f"next: drl fit {path} --device h100-80g; drl validate {path}; drl run {path}")


def _scorer(reward: str, family: str) -> dict[str, Any]:
    """The entry of `spec.reward.scorers`."""
    if reward.endswith(".py"):
        return {"name": "own", "function": {"path": reward}}
    taken = modalities(family)
    offered = [name for name in builtin_scorers() if modality(name) in taken and not _required_settings(name)]
    if reward not in offered:
        if not is_builtin(reward):
            problem = f"no scorer {reward!r}"
        elif modality(reward) not in taken:
            problem = f"the scorer {reward} cannot judge samples of {family}"
        else:
            problem = f"the scorer {reward} needs {', '.join(_required_settings(reward))}: write it into the job later"
        console.refuse(f"{problem}; choose {', '.join(offered)}, or a file that ends with .py")
    return {"name": reward}


def _default_reward(family: str) -> str:
    return "ocr" if "image" in modalities(family) else "pickscore"


def _from_folder(folder: Path, path: str) -> str:
    """A path of the working directory as the job has it: relative to the job's folder."""
    if folder == Path() or Path(path).is_absolute():
        return path
    relative = os.path.relpath(path, folder)
    return relative if relative.startswith("..") else f"./{relative}"


def modalities(family: str) -> tuple[str, ...]:
    """Modalities of scorers that judge the samples of a family."""
    _, description = FAMILIES[family]
    return ("pixels", "video" if description.videos else "image")


def _required_settings(scorer: str) -> list[str]:
    return [name for name, field in settings_model(scorer).model_fields.items() if field.is_required()]


def _job(family: str, name: str, scorer: dict[str, Any], model: str | None) -> str:
    """The family's example with this name, reward and model, and its comments."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=2, offset=0)
    folder, _ = FAMILIES[family]
    example = (files(pipelines) / folder / EXAMPLE_FILE).read_text(encoding="utf-8")
    job = yaml.load(example)
    job["metadata"]["name"] = name
    spec = job["spec"]
    if model is not None:
        spec["model"]["base"] = model
        for of_the_hub in ("tokenSecretRef", "cache"):
            spec["model"].pop(of_the_hub, None)
    for use, file in PROMPTS.items():
        spec["data"][use] = [file]
    if not asks_judge(scorer["name"]):
        spec["reward"].pop("model", None)
    elif "model" not in spec["reward"]:
        spec["reward"].insert(0, "model", {"base": JUDGE})
    spec["reward"]["scorers"] = [scorer]
    text = io.StringIO()
    yaml.dump(job, text)
    return f"# Made by `drl init {family}`. Every field: docs/reference/job.md\n{text.getvalue()}"


def _prompts(use: str) -> str:
    """Sample prompts, each with a text to show, which rewards that read no text ignore."""
    rows = [
        {"prompt": f'{scene} "{text}"', "data_source": "samples", "ground_truth": text}
        for scene in SCENES[use]
        for text in TEXTS
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)
