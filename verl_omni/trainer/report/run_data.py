"""A run folder, parsed and checked. Files that an unfinished run has not written yet count as empty."""

import base64
import io
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from PIL import Image as Picture
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

MOST_COLUMNS = 12  # evaluations whose images are in the report
LONGEST_SIDE = 512  # pixels; larger images are reduced
Kind = Literal["prompt", "best", "worst", "preview"]
Line = dict[str, float | None]
T = TypeVar("T")


class Entry(BaseModel):
    """An image in `index.json`: the name of a file in the same folder, never a path elsewhere."""

    model_config = ConfigDict(frozen=True)

    file: str = Field(pattern=r"^\w[\w.-]*\.png$")
    video: str | None = Field(default=None, pattern=r"^\w[\w.-]*\.webp$")
    prompt: str
    seed: int
    score: float | None
    kind: Kind = "prompt"
    training_score: float | None = None


class Event(BaseModel):
    """A line of `progress.jsonl`; fields that the report does not use are ignored."""

    model_config = ConfigDict(frozen=True)

    event: str
    step: int | None = None
    total_steps: int | None = None
    resumed_from: int | None = None
    new_run: bool | None = None
    reason: str | None = None
    message: str | None = None


class Machine(BaseModel):
    """`machine.json`."""

    model_config = ConfigDict(frozen=True)

    cpu: str
    cores: int
    memory_gib: float
    accelerators: dict[str, int]


_LINE = TypeAdapter(Line)
_INDEX = TypeAdapter(list[Entry])
_VERSIONS = TypeAdapter(dict[str, str])
_MACHINE: TypeAdapter[Machine | None] = TypeAdapter(Machine | None)


@dataclass(frozen=True, slots=True)
class Image:
    """An image of an evaluation; `url` is a data URL, `width` and `height` are in pixels.

    Attributes:
        video: path in the run folder of the video whose frames it shows; None of an image.
    """

    prompt: str
    seed: int
    score: float | None
    url: str
    width: int
    height: int
    video: str | None = None
    kind: Kind = "prompt"
    """A fixed prompt, one of the best or worst samples of an evaluation, or a preview: a training image next to the
    evaluation's."""
    training_score: float | None = None
    """Score of the training image of a preview."""
    file: str = ""
    """Path of the image in the run folder."""


@dataclass(frozen=True, slots=True)
class Run:
    """Contents of a run folder.

    Attributes:
        lines: one line per step, in order of the steps.
        images: images by step, for at most `MOST_COLUMNS` evaluations, including the first and the last.
        unreadable_images: number of missing or malformed images in all evaluations.
    """

    name: str
    lines: Sequence[Line] = ()
    images: dict[int, list[Image]] = field(default_factory=dict)
    unreadable_images: int = 0
    events: Sequence[Event] = ()
    versions: dict[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    overrides: str = ""
    job: str = ""

    def steps(self) -> list[Line]:
        """Lines of training steps. Step 0 is an evaluation of the initial weights."""
        return [line for line in self.lines if (line["step"] or 0) > 0]

    def evaluations(self) -> list[Line]:
        """Lines with an evaluation on held-out prompts."""
        return [line for line in self.lines if _is_evaluation(line)]

    def images_of(self, kind: Kind) -> dict[int, list[Image]]:
        """The images of a kind by step, for the steps that have any."""
        chosen = {step: [image for image in images if image.kind == kind] for step, images in self.images.items()}
        return {step: images for step, images in chosen.items() if images}

    def with_metric(self, *names: str) -> list[Line]:
        """Lines that recorded one of the metrics."""
        return [line for line in self.lines if any(name in line for name in names)]


def load(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        ValueError: a file is malformed; the message names it.
    """
    lines = parse_metrics(_text(folder / "metrics.jsonl"))
    images, unreadable = _images(folder / "samples", {int(line["step"] or 0) for line in lines if _is_evaluation(line)})
    config = _text(folder / "config.yaml")
    return Run(
        name=folder.resolve().name,
        lines=lines,
        images=images,
        unreadable_images=unreadable,
        events=_of_last_run(parse_events(_text(folder / "progress.jsonl"))),
        versions=_parsed(_VERSIONS, folder / "versions.json", {}),
        machine=_parsed(_MACHINE, folder / "machine.json", None),
        settings=_settings(config),
        config=config,
        overrides=_text(folder / "overrides.txt"),
        job=_text(folder / "job.yaml"),
    )


def evenly_spaced(steps: list[int], most: int) -> list[int]:
    """At most `most` of the steps, evenly spaced, with the first and the last."""
    if len(steps) <= most:
        return steps
    return [steps[round(number * (len(steps) - 1) / (most - 1))] for number in range(most)]


def parse_metrics(text: str) -> list[Line]:
    """Complete lines of metrics in order of their steps; for a repeated step, the last line.

    Raises:
        ValueError: a complete line is malformed or has no step.
    """
    by_step: dict[int, Line] = {}
    for raw in _complete_lines(text):
        try:
            line = _LINE.validate_json(raw)
        except ValidationError as error:
            raise ValueError(f"metrics.jsonl: a line is not a JSON object of numbers: {raw[:80]}") from error
        step = line.get("step")
        if step is None or step < 0 or step != int(step):
            raise ValueError(f"metrics.jsonl: a line has no valid step: {raw[:80]}")
        by_step[int(step)] = line
    return [by_step[step] for step in sorted(by_step)]


def parse_events(text: str) -> list[Event]:
    """Events in order. A line that a killed process left incomplete is skipped, wherever it is."""
    events = []
    for raw in _complete_lines(text):
        try:
            events.append(Event.model_validate_json(raw))
        except ValidationError:  # incomplete: nothing in it can be shown
            continue
    return events


def _of_last_run(events: Sequence[Event]) -> Sequence[Event]:
    """The events since the last run began in the folder; before it, others may have trained there."""
    began = [
        index
        for index, event in enumerate(events)
        if event.event == "start" and (event.resumed_from is None if event.new_run is None else event.new_run)
    ]
    return events[began[-1] :] if began else events


def _is_evaluation(line: Line) -> bool:
    return any(name.startswith("val/") for name in line)


def _images(folder: Path, evaluated: Set[int]) -> tuple[dict[int, list[Image]], int]:
    """Images of the evaluations that are shown, and how many of all that are listed are missing or malformed.

    Only the headers of the other images are read, because a long run has gigabytes of images. Images of steps that are
    not in `evaluated` come from an earlier run in the folder, or from an evaluation that did not finish.
    """
    listed: dict[int, list[tuple[Path, Entry, tuple[int, int]]]] = {}
    unreadable = 0
    for path in sorted(folder.glob("step_*")):
        number = path.name.removeprefix("step_")
        if not (number.isascii() and number.isdigit() and int(number) in evaluated):
            continue
        entries = _parsed(_INDEX, path / "index.json", [])
        sizes = [(path / entry.file, entry, _png_size(path / entry.file)) for entry in entries]
        unreadable += sum(size is None for _, _, size in sizes)
        if images := [(file, entry, size) for file, entry, size in sizes if size is not None]:
            listed[int(number)] = images
    shown = evenly_spaced(sorted(listed), MOST_COLUMNS)
    return {step: [_image(*entry) for entry in listed[step]] for step in shown}, unreadable


def _png_size(file: Path) -> tuple[int, int] | None:
    """Width and height from the header of a PNG; None for anything else, and where there is no file."""
    try:
        with Picture.open(file, formats=["PNG"]) as picture:
            return picture.size
    except (OSError, ValueError):
        return None


def _image(file: Path, entry: Entry, size: tuple[int, int]) -> Image:
    folder = f"samples/{file.parent.name}"
    return Image(
        entry.prompt,
        entry.seed,
        entry.score,
        _data_url(file, size),
        *size,
        video=f"{folder}/{entry.video}" if entry.video else None,
        kind=entry.kind,
        training_score=entry.training_score,
        file=f"{folder}/{entry.file}",
    )


def _data_url(file: Path, size: tuple[int, int]) -> str:
    """The image itself, or, of a large one, a smaller copy."""
    if max(size) <= LONGEST_SIDE:
        return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    smaller = io.BytesIO()
    with Picture.open(file) as picture:
        picture.thumbnail((LONGEST_SIDE * max(1, round(size[0] / size[1])), LONGEST_SIDE))
        picture.convert("RGB").save(smaller, "WEBP", quality=85)
    return f"data:image/webp;base64,{base64.b64encode(smaller.getvalue()).decode()}"


def _settings(config: str) -> dict[str, Any]:
    try:
        settings = YAML(typ="safe").load(config) or {}
    except YAMLError as error:
        raise ValueError(f"config.yaml is malformed: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"config.yaml is malformed: expected a mapping, found {type(settings).__name__}")
    return settings


def _complete_lines(text: str) -> list[str]:
    return [raw for raw in text[: text.rfind("\n") + 1].split("\n") if raw.strip()]


def _parsed(adapter: TypeAdapter[T], path: Path, missing: T) -> T:
    text = _text(path)
    if not text:
        return missing
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"{path.name} is malformed: {error}") from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
