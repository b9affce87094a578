"""The list of scorers in docs/reference/rewards.md, from the scorers' modules."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tools.generated_file import with_part
from verl_omni.reward_loop.rewards import SCORERS, UNAVAILABLE, doc_line, get_scorer, scorer_module
from verl_omni.reward_loop.scorer_signature import setting_fields

PAGE = Path("docs/reference/rewards.md")
BEGIN = "<!-- scorers: written by `make crds` -->"
END = "<!-- end of scorers -->"
_PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})")
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def render() -> str:
    """The scorers with score and settings, and the reference's scorers that do not exist here."""
    lines = [f"- **`{name}`**: {_score(name)}.{_settings(name)}" for name in SCORERS]
    missing = ["", "Scorers of the reference that do not exist here:", ""]
    return "\n".join([*lines, *missing, *(f"- `{name}`: {why}" for name, why in UNAVAILABLE.items())])


def _settings(name: str) -> str:
    fields = setting_fields(get_scorer(name))
    return " Settings: " + ", ".join(_setting(setting, *field) for setting, field in fields.items()) if fields else ""


def _setting(name: str, annotation: Any, default: Any) -> str:
    limits = "; ".join(_limits(annotation, default))
    return f"`{name}` ({limits})" if limits else f"`{name}`"


def _limits(annotation: Any, default: Any) -> Iterator[str]:
    """The values that a setting takes, and its default if it has one that is a value."""
    info = FieldInfo.from_annotation(annotation)
    bounds = {
        key: value for item in info.metadata for key in _BOUNDS if (value := getattr(item, key, None)) is not None
    }
    if get_origin(info.annotation) is Literal:
        yield ", ".join(f"`{value}`" for value in get_args(info.annotation))
    elif {"ge", "le"} <= bounds.keys():
        yield f"{bounds['ge']:g} to {bounds['le']:g}"
    else:
        yield from (f"{_BOUNDS[key]} {value:g}" for key, value in bounds.items())
    if default is ...:
        yield "required"
    elif default is not None:
        yield f"default `{default}`" if isinstance(default, str) else f"default {default:g}"


def _score(name: str) -> str:
    papers = _PAPER.findall(scorer_module(name).__doc__ or "")
    links = "".join(f" ([{paper}](https://arxiv.org/abs/{paper}))" for paper in papers)
    return doc_line(name).removesuffix(".") + links


def generated() -> dict[Path, str]:
    """The page with a new list."""
    return with_part(PAGE, BEGIN, END, render())
