"""Prompt files of the example."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from verl_omni.models.shapes.scenes import CATEGORIES, Scene, split

TRAINING_SHARES = {"single": 0.10, "count": 0.25, "two": 0.45, "position": 0.20}
TRAINING_ROWS = 2000
HELD_OUT_PER_CATEGORY = 50


def held_out() -> list[Scene]:
    """200 held-out prompts, 50 per category; categories with fewer prompts repeat them."""
    _, held = split()
    made: list[Scene] = []
    for category in CATEGORIES:
        own = [scene for scene in held if scene.category == category]
        made += [own[place % len(own)] for place in range(HELD_OUT_PER_CATEGORY)]
    return made


def training(seed: int = 0) -> list[Scene]:
    """2,000 training prompts, with `TRAINING_SHARES` of each category."""
    train, _ = split()
    rng = np.random.default_rng(seed)
    own = {category: [scene for scene in train if scene.category == category] for category in CATEGORIES}
    drawn = rng.choice(list(TRAINING_SHARES), TRAINING_ROWS, p=list(TRAINING_SHARES.values()))
    return [own[category][rng.integers(len(own[category]))] for category in drawn]


def write(folder: Path) -> None:
    """Write `shapes_train.jsonl` and `shapes_heldout.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("shapes_train", training()), ("shapes_heldout", held_out())):
        lines = [
            json.dumps(
                {
                    "prompt": s.text,
                    "data_source": "shapes",
                    "ground_truth": s.text,
                    "extra_info": {"category": s.category},
                }
            )
            for s in chosen
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
