"""PURE: prompts such as "two red crosses" or "a blue square left of a cyan circle", and images of them."""

import hashlib
import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

SIZE = 64
BACKGROUND = np.array([0.93, 0.93, 0.90])
COLORS = {
    "red": (0.87, 0.13, 0.13),
    "green": (0.10, 0.65, 0.20),
    "blue": (0.12, 0.28, 0.90),
    "yellow": (0.97, 0.80, 0.05),
    "purple": (0.60, 0.15, 0.75),
    "cyan": (0.10, 0.75, 0.82),
}
SHAPES = ("circle", "square", "triangle", "cross")
NUMBERS = {"two": 2, "three": 3, "four": 4}
RELATIONS = ("left of", "right of", "above", "below")
CATEGORIES = ("single", "count", "two", "position")
HELD_OUT_SHARE = 0.2

Image = NDArray[np.float64]
Item = tuple[str, str]  # colour, shape


@dataclass(frozen=True, slots=True)
class Scene:
    """Content of a prompt: objects, and the position of the first relative to the second."""

    category: str
    text: str
    objects: tuple[Item, ...]
    relation: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """An object in an image; centre and radius in pixels."""

    color: str
    shape: str
    x: float
    y: float
    radius: float


def all_scenes() -> list[Scene]:
    """All 2,496 prompts, in a fixed order."""
    items = list(itertools.product(COLORS, SHAPES))
    scenes = []
    for color, shape in items:
        scenes.append(Scene("single", f"a {color} {shape}", ((color, shape),)))
        for word, number in NUMBERS.items():
            scenes.append(Scene("count", f"{word} {color} {_plural(shape)}", ((color, shape),) * number))
    for first_item, other_item in itertools.permutations(items, 2):
        if first_item[0] == other_item[0]:
            continue
        first = f"a {first_item[0]} {first_item[1]}"
        second = f"a {other_item[0]} {other_item[1]}"
        scenes.append(Scene("two", f"{first} and {second}", (first_item, other_item)))
        scenes += [Scene("position", f"{first} {rel} {second}", (first_item, other_item), rel) for rel in RELATIONS]
    return scenes


def _plural(shape: str) -> str:
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"


_BY_TEXT: dict[str, Scene] = {scene.text: scene for scene in all_scenes()}


def parse(text: str) -> Scene:
    """The scene of a prompt.

    Raises:
        ValueError: the text is not one of `all_scenes`.
    """
    scene = _BY_TEXT.get(" ".join(text.lower().split()))
    if scene is None:
        raise ValueError(f"not a prompt of the shapes example: {text!r}")
    return scene


def split() -> tuple[list[Scene], list[Scene]]:
    """(training, held out): one prompt in five of each category, chosen by a hash of its text, is held out."""
    train: list[Scene] = []
    held: list[Scene] = []
    for category in CATEGORIES:
        of_category = sorted((s for s in _BY_TEXT.values() if s.category == category), key=lambda s: _hash(s.text))
        cut = round(len(of_category) * HELD_OUT_SHARE)
        held += of_category[:cut]
        train += of_category[cut:]
    return train, held


def recolored(scene: Scene, share: float, rng: np.random.Generator) -> Scene:
    """A training scene with some of its color words replaced: a wrong caption for an image of `scene`.

    Args:
        share: probability that a color word is replaced, by a random color, which may be the same one.
    """
    train = _training_scenes()
    while True:
        count = 1 if scene.category == "count" else len(scene.objects)  # a count names its color once
        colors = [
            str(rng.choice(list(COLORS))) if rng.random() < share else color for color, _ in scene.objects[:count]
        ]
        objects = tuple((color, shape) for color, (_, shape) in zip(itertools.cycle(colors), scene.objects))
        if match := train.get((scene.category, objects, scene.relation)):
            return match


@cache
def _training_scenes() -> dict[tuple[str, tuple[Item, ...], str | None], Scene]:
    return {(scene.category, scene.objects, scene.relation): scene for scene in split()[0]}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def place(scene: Scene, rng: np.random.Generator, jitter: float = 1.5) -> list[Placed]:
    """Place the objects near the centres of a 2 x 2 grid; arbitrary positions take longer to learn."""
    cells = [(x, y) for x in (0, 1) for y in (0, 1)]
    if scene.relation is None:
        chosen = [cells[index] for index in rng.permutation(4)[: len(scene.objects)]]
    else:
        first, second = (0, 1) if scene.relation in ("left of", "above") else (1, 0)
        shared = int(rng.integers(2))
        across = scene.relation in ("left of", "right of")
        chosen = [(first, shared), (second, shared)] if across else [(shared, first), (shared, second)]
    return [
        Placed(
            color,
            shape,
            16.5 + 31 * x + rng.uniform(-jitter, jitter),
            16.5 + 31 * y + rng.uniform(-jitter, jitter),
            rng.uniform(10, 12),
        )
        for (color, shape), (x, y) in zip(scene.objects, chosen, strict=True)
    ]


_ROW, _COLUMN = np.mgrid[0:SIZE, 0:SIZE] + 0.5


def draw(placed: list[Placed]) -> Image:
    """Render float [64, 64, 3] in [0, 1], with anti-aliased edges."""
    image: Image = np.broadcast_to(BACKGROUND, (SIZE, SIZE, 3)).copy()
    for item in placed:
        distance = shape_distance(item.shape, (_COLUMN - item.x) / item.radius, (_ROW - item.y) / item.radius)
        cover = np.clip(0.5 - distance * item.radius, 0, 1)[..., None]
        image = image * (1 - cover) + np.array(COLORS[item.color]) * cover
    return image


def shape_distance(shape: str, x: Image, y: Image) -> Image:
    """Approximate signed distance to the outline of a shape of radius 1 at the origin; negative inside."""
    match shape:
        case "circle":
            return np.asarray(np.hypot(x, y) - 1)
        case "square":
            return np.asarray(np.maximum(abs(x), abs(y)) - 0.88)
        case "triangle":
            return np.asarray(np.maximum(y - 0.85, (2 * abs(x) - (y + 0.95)) / np.sqrt(5)))
        case "cross":
            upright = np.maximum(abs(x) - 0.34, abs(y) - 1)
            flat = np.maximum(abs(x) - 1, abs(y) - 0.34)
            return np.asarray(np.minimum(upright, flat))
        case _:
            raise ValueError(f"unknown shape {shape!r}")
