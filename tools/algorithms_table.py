"""The tables in docs/reference/algorithms.md, from the descriptions of the algorithms and their settings files."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from tools.generated_file import replace_part, with_part
from verl_omni.workers.algorithms import registered

PAGE = Path("docs/reference/algorithms.md")
BEGIN = "<!-- algorithms: written by `make crds` -->"
END = "<!-- end of algorithms -->"
BEGIN_SETTINGS = "<!-- settings of algorithms: written by `make crds` -->"
END_SETTINGS = "<!-- end of settings of algorithms -->"
FILES = Path("verl_omni/trainer/config/loss")
_LINE = re.compile(r" *(?P<name>\w+):(?: (?P<default>\S+))?(?: +# (?P<meaning>.+))?")  # a group has no default
_GROUPS = ("diffusion_loss", "algorithm")
_NAMES = ("_target_", "loss_mode")  # of the algorithm and its type, which are no settings


def render() -> str:
    """The table, and below it what the modules of algorithms say after the first paragraph of their docstrings."""
    return "\n".join([*_table(), *_paragraphs()])


def _table() -> Iterator[str]:
    yield "| algorithm | in a job | `loss_mode` | paper |"
    yield "| --- | --- | --- | --- |"
    for name, (algorithm, meaning) in registered.job_names().items():
        more = f" with `{meaning.more}`" if meaning.more else ""
        paper = f"[{meaning.paper}](https://arxiv.org/abs/{meaning.paper})"
        yield f"| {meaning.title} | `algorithm.name: {name}`{more} | `{algorithm}` | {paper} |"


def _paragraphs() -> Iterator[str]:
    for algorithm in registered.ALGORITHMS:
        module = importlib.import_module(f"{registered.__name__}.{algorithm}")
        _, _, more = (inspect.getdoc(module) or "").partition("\n\n")
        if more:
            yield f"\n### `{algorithm}`\n\n{more}"


def render_settings() -> str:
    """The settings that only some algorithms have, each with its default and its comment in the algorithms' files."""
    algorithms: dict[tuple[str, str, str], list[str]] = {}
    for algorithm in registered.ALGORITHMS:
        for setting in _settings(algorithm):
            algorithms.setdefault(setting, []).append(f"`{algorithm}`")
    rows = [
        f"| {', '.join(names)} | `{setting}` | {default} | {meaning} |"
        for (setting, default, meaning), names in algorithms.items()
    ]
    return "\n".join(["| algorithm | setting | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _settings(algorithm: str) -> Iterator[tuple[str, str, str]]:
    """(name, default, meaning) of each setting of `_GROUPS`.

    Raises:
        LookupError: one has no comment.
    """
    group = ""
    for line in (FILES / f"{algorithm}.yaml").read_text(encoding="utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        if match["default"] is None:
            group = match["name"]
        elif group in _GROUPS and match["name"] not in _NAMES:
            if match["meaning"] is None:
                raise LookupError(f"loss/{algorithm}.yaml: {match['name']} has no comment, which documents it")
            name = match["name"] if group == _GROUPS[0] else f"{group}.{match['name']}"
            yield name, match["default"], match["meaning"]


def generated() -> dict[Path, str]:
    """The page with new tables."""
    page = with_part(PAGE, BEGIN, END, render())[PAGE]
    return {PAGE: replace_part(page, BEGIN_SETTINGS, END_SETTINGS, render_settings())}
