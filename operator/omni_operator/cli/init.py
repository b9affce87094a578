"""`drl init`: a commented job for a model family and a reward, made of a tested example."""

import io
import json
import os
import struct
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from omni_operator.api import JobError, read_job
from omni_operator.api.spec.scorers import asks_judge, builtin_scorers, is_builtin, settings_model
from verl_omni import pipelines
from verl_omni.pipelines.description import EXAMPLE_FILE
from verl_omni.pipelines.registry import FOLDERS, family_sizes, lent_folder
from verl_omni.reward_loop.rewards import modality
from verl_omni.reward_loop.scorer_signature import ScorerNotLoaded

from . import console

JUDGE = "Qwen/Qwen3-VL-8B-Instruct"
PROMPTS = {"train": "prompts.jsonl", "validation": "heldout.jsonl"}
TEXTS = ("Open", "Second Chance", "Slow Down", "Summer Sale", "The Long Road", "Fresh Bread")
SCENES = {"train": ("a shop sign that says", "a birthday cake with the words"), "validation": ("a book cover titled",)}
INPUT_IMAGE = "input.png"
# Folders by the names of the families: an example's model gives the name, or else the folder.
FAMILIES = {
    family.example.name if family.example else folder.replace("_", "-"): folder for folder, family in FOLDERS.items()
}


def _rewards() -> list[str]:
    """Scorers to complete, of all families."""
    return sorted({name for family in FAMILIES for name in offered_scorers(family)})


def init(
    family: Annotated[
        str,
        typer.Argument(
            help=f"Model family: {', '.join(sorted(FAMILIES))}.",
            metavar="FAMILY",
            autocompletion=lambda: sorted(FAMILIES),
        ),
    ],
    reward: Annotated[
        str | None,
        typer.Option(
            help="A built-in scorer, or a Python file with compute_score. Default: ocr; for videos pickscore.",
            metavar="SCORER|FILE.py",
            autocompletion=_rewards,
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
    scorer = _scorer(reward or ("ocr" if "image" in modalities(family) else "pickscore"), family)
    name = f"{family}-{scorer['name']}".replace("_", "-")
    path = out or Path(f"{name}.yaml")
    if path.is_dir():
        console.refuse(f"{path} is a folder: give --out FILE.yaml")
    if path.exists():
        console.refuse(f"{path} exists: remove it, or give --out FILE.yaml")
    if function := scorer.get("function"):
        function["path"] = _from_folder(path.parent, function["path"])
    if model is not None and (model.startswith(".") or Path(model).is_dir()):
        model = _from_folder(path.parent, model)
    text = _job(family, name, scorer, model)
    try:
        pipeline = read_job(text, str(path)).job.spec.rollout.pipeline
    except JobError as error:
        console.refuse(console.format_problems(error.problems))
    images = FOLDERS[FAMILIES[family]].input_images
    written = {path: text.encode()}
    written |= {path.parent / file: _prompts(use, images=images).encode() for use, file in PROMPTS.items()}
    if images:
        written[path.parent / INPUT_IMAGE] = _gray_image(pipeline.width, pipeline.height)
    for file, content in written.items():
        if file.exists():
            console.note(f"{file} exists, and is kept")
            continue
        try:
            file.write_bytes(content)
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
    offered = offered_scorers(family)
    if reward not in offered:
        problem = _unfit(reward, family) if is_builtin(reward) else f"no scorer {reward!r}"
        console.refuse(f"{problem}; choose {', '.join(offered)}, or a file that ends with .py")
    return {"name": reward}


def _from_folder(folder: Path, path: str) -> str:
    """A path of the working directory as the job has it: relative to the job's folder, and never like a model's id."""
    if Path(path).is_absolute():
        return path
    relative = os.path.relpath(path, folder)
    return relative if relative.startswith("..") else f"./{relative}"


def modalities(family: str) -> tuple[str, ...]:
    """Modalities of scorers that judge the samples of a family."""
    return ("pixels", "video" if FOLDERS[FAMILIES[family]].videos else "image")


def offered_scorers(family: str) -> list[str]:
    """Built-in scorers that judge the samples of a family, and need no settings."""
    return [name for name in builtin_scorers() if _unfit(name, family) is None]


def _unfit(scorer: str, family: str) -> str | None:
    """Why a built-in scorer is not offered; None: it is."""
    try:
        needed = [name for name, field in settings_model(scorer).model_fields.items() if field.is_required()]
    except ScorerNotLoaded as error:
        return f"the scorer {error}"
    if modality(scorer) not in modalities(family):
        return f"the scorer {scorer} cannot judge samples of {family}"
    return f"the scorer {scorer} needs {', '.join(needed)}: write it into the job later" if needed else None


def _job(family: str, name: str, scorer: dict[str, Any], model: str | None) -> str:
    """The family's example with this name, reward and model, and its comments."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=2, offset=0)
    folder = FAMILIES[family]
    # An example that is lent for such samples, if the family has none of its own.
    begun_with = folder if FOLDERS[folder].example else lent_folder(videos=FOLDERS[folder].videos)
    example = (files(pipelines) / begun_with / EXAMPLE_FILE).read_text(encoding="utf-8")
    job = yaml.load(example)
    job["metadata"]["name"] = name
    spec = job["spec"]
    if begun_with != folder:
        spec["model"]["base"] = next(iter(family_sizes(folder).RELEASED))
        spec["rollout"]["pipeline"].update(FOLDERS[folder].pipeline)
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
    header = f"# Made by `drl init {family}`. Every field: docs/reference/job.md\n"
    if begun_with != folder:
        header += (
            f"# The settings come from a recipe for {FOLDERS[begun_with].models}, and are not tuned for this model.\n"
        )
    return header + text.getvalue()


def _prompts(use: str, *, images: bool) -> str:
    """Sample prompts, each with a text to show, which rewards that read no text ignore.

    Args:
        images: whether each has an input image.
    """
    image = {"images": [INPUT_IMAGE]} if images else {}
    rows = [
        {"prompt": f'{scene} "{text}"', **image, "data_source": "samples", "ground_truth": text}
        for scene in SCENES[use]
        for text in TEXTS
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _gray_image(width: int, height: int) -> bytes:
    """A PNG file of one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    gray_rows = (b"\0" + b"\x80" * width) * height  # each row begins with its filter, 0: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits of gray
    parts = {b"IHDR": header, b"IDAT": zlib.compress(gray_rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts.items())
