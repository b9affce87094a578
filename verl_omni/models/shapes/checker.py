"""PURE: rule-based check that an image shows its prompt, modelled on GenEval (arXiv:2310.11513).

It finds connected components against the background, and classifies their colour by a vote of the inner pixels and
their shape by overlap with templates. Number, colours, shapes and relation must match; the background must be flat and
have its own colour; there must be almost nothing else in the image.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from verl_omni.models.shapes.scenes import BACKGROUND, COLORS, SHAPES, SIZE, Image, Item, Scene, parse, shape_distance

FOREGROUND_DISTANCE = 0.28  # from a pixel's colour to the background's, Euclidean in RGB
SMALLEST_AREA = 16  # pixels; smaller components are specks
TEMPLATE_SIZE = 16
SHAPE_OVERLAP = 0.80  # intersection over union with the best template
# Overlap does not tell a rounded square from a circle. A square fills the corner patches of its bounding box; a circle
# fills pi / 4 = 0.785 of the box.
CORNER = 3
SQUARE_CORNER = 0.60
CIRCLE_FILL = 0.85
RELATION_MARGIN = 6.0  # pixels
# Upper limit of the background's RMS deviation from its colour, at least three pixels away from any object. Images of
# the example model stay below 0.008; a tint or a lattice of patches, as training may produce, lies above.
FLAT_ENOUGH = 0.012
MOST_DEBRIS = 16  # pixels in all specks; one speck of that size would be an object

_PALETTE = np.array(list(COLORS.values()))
_NAMES = list(COLORS)
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Detected:
    """An object in an image; colour or shape is None if it is ambiguous."""

    color: str | None
    shape: str | None
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result: `correct` if everything matches, `partial` credit in [0, 1], `roughness` of the background."""

    correct: bool
    partial: float
    roughness: float


def judge(image: Image, prompt: str) -> Verdict:
    """Check an image, float [64, 64, 3] in [0, 1], against a prompt of `scenes`.

    Raises:
        ValueError: the prompt is unknown, or the image has another shape.
    """
    if image.shape != (SIZE, SIZE, 3):
        raise ValueError(f"expected an image [{SIZE}, {SIZE}, 3], got {list(image.shape)}")
    scene = parse(prompt)
    objects = detect(image)
    roughness = background_roughness(image)
    number = len(scene.objects)
    matched, pairs = _match(objects, scene.objects)
    parts = [matched, max(0.0, 1 - abs(len(objects) - number) / number)]
    if scene.relation is not None:
        parts.append(matched * _related(objects, pairs, scene))
    flat = min(1.0, FLAT_ENOUGH / max(roughness, 1e-9))
    clean = roughness <= FLAT_ENOUGH and debris(image) < MOST_DEBRIS
    correct = all(part == 1 for part in parts) and clean
    return Verdict(correct=correct, partial=float(np.mean(parts)) * flat, roughness=roughness)


def detect(image: Image) -> list[Detected]:
    """Objects of an image, from the top left."""
    labels, _ = ndimage.label(_foreground(image))
    objects = []
    for index, region in enumerate(ndimage.find_objects(labels), 1):
        mask = labels[region] == index
        if mask.sum() < SMALLEST_AREA:
            continue
        y, x = ndimage.center_of_mass(mask)
        objects.append(Detected(_color(image[region], mask), _shape(mask), region[1].start + x, region[0].start + y))
    return objects


def background_roughness(image: Image) -> float:
    """Root mean square deviation of the background from its colour, raised by a tint, a gradient or a lattice."""
    away = ~ndimage.binary_dilation(_foreground(image), iterations=3)
    if away.sum() < SMALLEST_AREA:
        return 1.0
    return float(np.sqrt(((image[away] - BACKGROUND) ** 2).mean()))


def debris(image: Image) -> int:
    """Number of pixels in components that are too small to be objects."""
    labels, number = ndimage.label(_foreground(image))
    areas = np.bincount(labels.ravel(), minlength=number + 1)[1:]
    return int(areas[areas < SMALLEST_AREA].sum())


def _foreground(image: Image) -> Mask:
    return np.asarray(np.linalg.norm(image - BACKGROUND, axis=2) > FOREGROUND_DISTANCE)


def _color(pixels: Image, mask: Mask) -> str | None:
    core = ndimage.binary_erosion(mask)
    inner = pixels[core if core.sum() >= 8 else mask]
    distance = np.linalg.norm(inner[:, None] - _PALETTE, axis=2)
    votes = np.bincount(distance.argmin(1), minlength=len(_NAMES))
    best = int(votes.argmax())
    clear = votes[best] >= 0.8 * len(inner) and np.median(distance[:, best]) < 0.25
    return _NAMES[best] if clear else None


def _shape(mask: Mask) -> str | None:
    height, width = mask.shape
    if not (0.7 <= height / width <= 1.43 and 11 <= max(height, width) <= 40):
        return None
    square = _normalised(mask)
    overlap = {shape: max(_overlap(square, template) for template in _templates()[shape]) for shape in SHAPES}
    best = max(overlap, key=lambda shape: overlap[shape])
    if overlap[best] < SHAPE_OVERLAP:
        return None
    if (best == "square" and _corner_fill(square) < SQUARE_CORNER) or (best == "circle" and mask.mean() > CIRCLE_FILL):
        return None
    return best


def _corner_fill(square: Mask) -> float:
    """Covered share of the four corner patches."""
    c = CORNER
    return float(np.mean([square[:c, :c], square[:c, -c:], square[-c:, :c], square[-c:, -c:]]))


def _normalised(mask: Mask) -> Mask:
    """The mask scaled to 16 x 16."""
    height, width = mask.shape
    zoom = (TEMPLATE_SIZE / height, TEMPLATE_SIZE / width)
    return np.asarray(ndimage.zoom(mask.astype(float), zoom, order=1, grid_mode=True, mode="nearest") > 0.5)


def _overlap(one: Mask, other: Mask) -> float:
    return float((one & other).sum() / (one | other).sum())


@cache
def _templates() -> dict[str, list[Mask]]:
    row, column = np.mgrid[0:SIZE, 0:SIZE] + 0.5
    templates: dict[str, list[Mask]] = {}
    for shape in SHAPES:
        templates[shape] = []
        for radius in (8, 11, 15):
            mask = shape_distance(shape, (column - 32) / radius, (row - 32) / radius) <= 0
            templates[shape].append(_normalised(mask[ndimage.find_objects(mask.astype(int))[0]]))
    return templates


def _match(found: list[Detected], wanted: tuple[Item, ...]) -> tuple[float, dict[int, int]]:
    """Best assignment: share of correct colours and shapes, and the detected object of each wanted one."""
    if not found:
        return 0.0, {}
    score = np.array([[0.5 * (d.color == c) + 0.5 * (d.shape == s) for d in found] for c, s in wanted])
    rows, columns = linear_sum_assignment(-score)
    return float(score[rows, columns].sum() / len(wanted)), {int(r): int(c) for r, c in zip(rows, columns, strict=True)}


def _related(found: list[Detected], pairs: dict[int, int], scene: Scene) -> bool:
    if len(pairs) != 2:
        return False
    first = found[pairs[0]]
    second = found[pairs[1]]
    dx = second.x - first.x
    dy = second.y - first.y
    along, across = {"left of": (dx, dy), "right of": (-dx, dy), "above": (dy, dx), "below": (-dy, dx)}[
        str(scene.relation)
    ]
    return along > RELATION_MARGIN and along > abs(across)
