"""Prompt files of the example."""

import json
from pathlib import Path

import numpy as np

from verl_omni.models.shapes.scenes import CATEGORIES, Scene, split

# Shares of the categories among the training rows of each pair of files. `objects`: one kind of object in a prompt.
SHARES = {
    "shapes": {"single": 0.10, "count": 0.25, "two": 0.45, "position": 0.20},
    "objects": {"single": 0.25, "count": 0.75},
}
TRAINING_ROWS = 2000
HELD_OUT_ROWS = 200


def held_out(name: str = "shapes") -> list[Scene]:
    """200 held-out prompts, equally many of each category; categories with fewer prompts repeat them."""
    _, held = split()
    categories = [category for category in CATEGORIES if category in SHARES[name]]
    chosen: list[Scene] = []
    for category in categories:
        of_category = [scene for scene in held if scene.category == category]
        chosen += [of_category[row % len(of_category)] for row in range(HELD_OUT_ROWS // len(categories))]
    return chosen


def training(name: str = "shapes", seed: int = 0) -> list[Scene]:
    """2,000 training prompts, with `SHARES` of each category."""
    train, _ = split()
    rng = np.random.default_rng(seed)
    by_category = {category: [scene for scene in train if scene.category == category] for category in CATEGORIES}
    drawn = rng.choice(list(SHARES[name]), TRAINING_ROWS, p=list(SHARES[name].values()))
    return [by_category[category][rng.integers(len(by_category[category]))] for category in drawn]


def write(folder: Path) -> None:
    """Write `<name>_train.jsonl` and `<name>_heldout.jsonl` for each name of `SHARES`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHARES:
        _write(folder / f"{name}_train.jsonl", training(name))
        _write(folder / f"{name}_heldout.jsonl", held_out(name))


def _write(path: Path, chosen: list[Scene]) -> None:
    lines = [
        json.dumps(
            {"prompt": s.text, "data_source": "shapes", "ground_truth": s.text, "extra_info": {"category": s.category}}
        )
        for s in chosen
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
