"""`drl report`: write the report of a run."""

from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from . import console
from .local import run_folder
from .machine import training_stack
from .options import Runs

OUT = Path("comparison.html")


def report(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Names of jobs, or paths of run folders.", metavar="NAME_OR_DIR")],
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option("--out", help="File of the comparison.", metavar="FILE")] = OUT,
) -> None:
    """Write the report of a run, or compare several runs.

    Example: drl report colors-grpo

    The report is report.html in the run folder; the run need not have ended.
    """
    if all(_is_run(Path(name)) for name in names):
        console.refuse_given(context, ("runs",), f"because {names[0]} is a run folder")
    if len(names) == 1:
        console.refuse_given(context, ("out",), "with one run, whose report is in its folder")
    elif not out.parent.is_dir():
        console.refuse(f"--out: {out.parent} is not a folder")
    elif out.is_dir():
        console.refuse(f"--out: {out} is a folder; name a file in it, such as {out / OUT}")
    folders = [_folder(name, runs) for name in names]
    if twice := next((folder for folder, later in combinations(folders, 2) if folder.samefile(later)), None):
        console.refuse(f"{twice} is given twice; name different runs to compare them")
    arguments = [*map(str, folders), *(["--out", str(out)] if len(folders) > 1 else [])]
    training_stack.exec_module("verl_omni.trainer.report", arguments)


def _folder(name: str, runs: Path) -> Path:
    folder = Path(name) if _is_run(Path(name)) else runs / name
    if not _is_run(folder):
        if other_folder := next((path for path in (Path(name), folder) if path.is_dir()), None):
            console.refuse(
                f"{other_folder} is not the folder of a run that has begun to train: it has no {run_folder.METRICS}"
            )
        known = sorted(path.parent.name for path in runs.glob(f"*/{run_folder.METRICS}"))
        console.refuse(f"no run {name!r} in {runs}; runs there: {', '.join(known) or 'none'}")
    return folder


def _is_run(folder: Path) -> bool:
    return (folder / run_folder.METRICS).is_file()
