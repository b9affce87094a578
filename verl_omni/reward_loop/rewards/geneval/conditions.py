"""PURE: GenEval's conditions of an image, and which of them hold for the objects that a detector found.

The thresholds and the order of the checks are the same as in the benchmark's program.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

Color = Literal["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"]
Relation = Literal["left of", "right of", "above", "below"]
COLOR_NAMES: tuple[str, ...] = get_args(Color)
LEAST_CONFIDENCE = 0.3
LEAST_CONFIDENCE_COUNTED = 0.9  # for prompts with the tag `counting`
MOST_OBJECTS = 16  # of a class, the most certain
OVERLAP = 0.1  # of the objects' sizes, by which an offset is reduced
SMALLEST_OFFSET = 1e-3  # pixels
DIRECTION = 0.5  # sine of the least angle, before the reduction, that makes a relation


@dataclass(frozen=True, slots=True)
class DetectedObject:
    """An object in an image.

    Attributes:
        box: left, top, right, bottom, in pixels.
        mask: a bool tensor [H, W], for its color.
    """

    box: tuple[float, float, float, float]
    confidence: float
    mask: Any = None


class Included(BaseModel):
    """Objects that an image must show. Fields that are None are not checked: Parquet gives all rows the same fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(alias="class")
    count: int = Field(ge=1)
    color: Color | None = None
    # Where these objects are relative to the objects of the condition with that number.
    position: tuple[Relation, int] | None = None


class Excluded(BaseModel):
    """So many objects of a class, or more, must not be shown."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(alias="class")
    count: int = Field(ge=1)


Objects = Mapping[str, Sequence[DetectedObject]]  # by class, the most certain first
ColorsOf = Callable[[Sequence[DetectedObject], str], list[str]]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the image of a prompt must show, and must not."""

    include: tuple[Included, ...]
    exclude: tuple[Excluded, ...]
    is_counting: bool

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """The conditions in a row's columns `include`, `exclude` and `tag`; a column may be JSON.

        Raises:
            ValueError: there is none, or one is malformed.
        """
        try:
            include = TypeAdapter(tuple[Included, ...]).validate_python(_parsed(row.get("include")))
            exclude = TypeAdapter(tuple[Excluded, ...]).validate_python(_parsed(row.get("exclude")))
        except (ValidationError, json.JSONDecodeError) as error:
            raise ValueError(f"geneval: the row's include or exclude is malformed: {error}") from error
        if not include and not exclude:
            raise ValueError("geneval: the row has neither a column include nor exclude, as GenEval's prompts have")
        for index, condition in enumerate(include):
            if condition.position is not None and not 0 <= condition.position[1] < index:
                raise ValueError(
                    f"geneval: include {index} has a position to {condition.position[1]}, not to an earlier one"
                )
        return cls(include, exclude, row.get("tag") == "counting")

    @property
    def classes(self) -> frozenset[str]:
        """The names of all classes of objects."""
        return frozenset([*(entry.name for entry in self.include), *(entry.name for entry in self.exclude)])

    @property
    def least_confidence(self) -> float:
        """Objects that the detector is less certain of do not count."""
        return LEAST_CONFIDENCE_COUNTED if self.is_counting else LEAST_CONFIDENCE

    def check(self, objects: Objects, colors_of: ColorsOf) -> list[bool]:
        """Whether each condition holds: of each included class its number, color and position; then the excluded.

        Colors and positions are checked of the most certain objects, as many as are required.

        Args:
            colors_of: the color of each object of a class.
        """
        held = []
        matched: list[Sequence[DetectedObject]] = []  # of each included class; empty: its conditions do not hold
        for condition in self.include:
            chosen = objects.get(condition.name, ())[: condition.count]
            fulfilled = [len(chosen) == condition.count]
            if condition.color is not None:
                fulfilled.append(
                    fulfilled[0] and all(color == condition.color for color in colors_of(chosen, condition.name))
                )
            if condition.position is not None:
                relation, reference = condition.position
                targets = matched[reference]
                fulfilled.append(
                    all(fulfilled)
                    and bool(targets)
                    and all(relation in relations(subject, target) for subject in chosen for target in targets)
                )
            matched.append(chosen if all(fulfilled) else ())
            held += fulfilled
        return held + [len(objects.get(excluded.name, ())) < excluded.count for excluded in self.exclude]


def relations(one: DetectedObject, other: DetectedObject) -> set[Relation]:
    """Where an object is, seen from another one; nothing if their centers are near for their sizes."""
    offsets = []
    reduced = []
    for low, high in ((0, 2), (1, 3)):
        offset = (one.box[low] + one.box[high] - other.box[low] - other.box[high]) / 2
        sizes = one.box[high] - one.box[low] + other.box[high] - other.box[low]
        offsets.append(offset)
        reduced.append(math.copysign(max(abs(offset) - OVERLAP * sizes, 0.0), offset))
    if max(map(abs, reduced)) < SMALLEST_OFFSET:
        return set()
    right, down = (distance / math.hypot(*offsets) for distance in reduced)
    directions: dict[Relation, bool] = {
        "left of": right < -DIRECTION,
        "right of": right > DIRECTION,
        "above": down < -DIRECTION,
        "below": down > DIRECTION,
    }
    return {relation for relation, holds in directions.items() if holds}


def _parsed(column: Any) -> Any:
    if isinstance(column, str):
        column = json.loads(column)
    return () if column is None else list(column)
