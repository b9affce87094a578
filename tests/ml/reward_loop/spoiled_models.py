"""Copies of a model's folder that a scorer must refuse."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def without_weight(folder: Path, copy: Path, name: str) -> Path:
    """A copy that lacks one weight, which transformers would fill in with random numbers."""
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    del weights[name]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def of_type(folder: Path, copy: Path, kind: str) -> Path:
    """A copy that says it has a model of another type."""
    shutil.copytree(folder, copy)
    (copy / "config.json").write_text(json.dumps({"model_type": kind}))
    return copy
