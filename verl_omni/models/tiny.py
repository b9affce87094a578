"""Makers of tiny random models for tests: one for each model family, and one for a judge.

A maker, `make(path, seed=0)`, writes a model offline in its library's layout, deterministic by seed. It has the
scheduler of its released model.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from verl_omni.pipelines.registry import FOLDERS
from verl_omni.utils.registry import load, merged


def _make(maker: str, path: Path, seed: int = 0) -> None:
    load(maker)(path, seed)


_PATHS = {
    **merged(
        "tiny model",
        {
            folder: {
                name: f"verl_omni.pipelines.{folder}.tiny_model:{maker}" for name, maker in family.tiny_models.items()
            }
            for folder, family in FOLDERS.items()
        },
    ),
    "qwen3_vl": "verl_omni.models.vision_language:make_tiny_qwen3_vl",
}
# By name; a maker imports diffusers when it is called.
MAKERS: dict[str, Callable[..., None]] = {name: partial(_make, path) for name, path in sorted(_PATHS.items())}
