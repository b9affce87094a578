"""`drl model`: create models and prompts offline."""

import os
from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli import console
from verl_omni.models.tiny import MAKERS

from . import training_stack

PROGRAM = "verl_omni.models"
PROMPT_FILES = tuple(f"{name}_{part}.jsonl" for name in ("shapes", "objects") for part in ("train", "heldout"))

app = typer.Typer(help="Create small models and prompts, offline.", no_args_is_help=True, rich_markup_mode=None)


FamilyName = Annotated[
    str,
    typer.Argument(help=f"{', '.join(sorted(MAKERS))}.", metavar="FAMILY", autocompletion=lambda: sorted(MAKERS)),
]
NewFolder = Annotated[Path, typer.Argument(help="New or empty folder to write.", metavar="PATH")]
Seed = Annotated[int, typer.Option(help="Seed of the random weights.", min=0, max=2**31 - 1, metavar="N")]


@app.command()
def tiny(family: FamilyName, path: NewFolder, seed: Seed = 0) -> None:
    """Create a tiny model with random weights, for tests. Takes about half a minute.

    Example: drl model tiny sd3 models/tiny
    """
    if family not in MAKERS:
        console.refuse(f"no model family {family!r}; choose {', '.join(sorted(MAKERS))}")
    _make_folder(path)
    console.say(f"creating a tiny {family} model in {path} ...")
    training_stack.exec_module(PROGRAM, ["tiny", family, str(path), "--seed", str(seed)])


@app.command()
def shapes(
    path: NewFolder,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1, metavar="N")] = 1000,
    seed: Seed = 0,
    wrong_colors: Annotated[
        float, typer.Option(help="Share of the captions' color words that are random.", min=0, max=1, metavar="SHARE")
    ] = 0.0,
) -> None:
    """Train the model of the examples, a small SD3 that draws shapes. Takes minutes.

    Example: drl model shapes models/shapes-sd3
    """
    _make_folder(path)
    options = {"--steps": steps, "--seed": seed, "--wrong-colors": wrong_colors}
    training_stack.exec_module(
        PROGRAM, ["shapes", str(path), *(text for pair in options.items() for text in map(str, pair))]
    )


@app.command()
def prompts(path: Annotated[Path, typer.Argument(help="Folder to write the files to.", metavar="PATH")]) -> None:
    """Write the prompts of the examples.

    Example: drl model prompts prompts

    Writes shapes_train.jsonl and shapes_heldout.jsonl, and objects_train.jsonl and objects_heldout.jsonl, whose prompts
    name one kind of object.
    """
    if existing := [name for name in PROMPT_FILES if (path / name).exists()]:
        console.refuse(f"{path} already contains {' and '.join(existing)}; give another folder, or delete them first")
    _make_writable(path)
    training_stack.exec_module(PROGRAM, ["prompts", str(path)])


def _make_folder(path: Path) -> None:
    """Make the new folder; exit if it has content, or if files cannot be written to it."""
    if path.is_dir() and any(path.iterdir()):
        console.refuse(f"{path} is not empty; give a new folder, or delete it first")
    if path.exists() and not path.is_dir():
        console.refuse(f"{path} is a file; give a new folder")
    _make_writable(path)


def _make_writable(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.refuse(f"{path} cannot be made: {error.strerror}; give another folder")
    if not os.access(path, os.W_OK | os.X_OK):
        console.refuse(f"{path} is read-only; give another folder")
