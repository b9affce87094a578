"""Configurations of released models, by Hugging Face model id, so that their memory can be estimated offline.

They are in the module `sizes` of a family's folder. Source: the `model_index.json` of each repository and the
`config.json` of its components, as far as they determine shapes; other keys have the defaults of diffusers and
transformers. They agree with the sizes that the authors publish
(tests/ml/trainer/memory_estimate/test_public_models.py).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_omni.pipelines.registry import FOLDERS, family_sizes

MODELS = {name: model for folder in FOLDERS for name, model in family_sizes(folder).RELEASED.items()}


def write(model_id: str, folder: Path) -> None:
    """Write the configuration files of a public model to a folder, in diffusers' layout, without weights.

    Raises:
        KeyError: the model is not one of `MODELS`.
    """
    model = MODELS[model_id]
    index: dict[str, Any] = {"_class_name": model.architecture, **model.index}
    for name, (class_name, config) in model.components.items():
        text = name.startswith("text_encoder")
        index[name] = ["transformers" if text else "diffusers", class_name]
        named = {"architectures": [class_name]} if text else {"_class_name": class_name}
        _write(folder / name / "config.json", {**named, **config})
    _write(folder / "tokenizer" / "tokenizer_config.json", {"model_max_length": model.tokenizer_length})
    _write(folder / "model_index.json", index)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
