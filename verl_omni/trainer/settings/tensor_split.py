"""Check, before anything starts, that the accelerators of an engine can share its transformer (tensor parallelism)."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.utils.model_folder import SECOND_TRANSFORMER

TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def check(config: DictConfig) -> None:
    """Refuse a tensor parallel size that does not divide what the engine divides.

    Args:
        config: settings of the trainer, with the model's folder and architecture filled in, on a CPU also the size.

    Raises:
        ValueError: the message lists the sizes that do.
        FileNotFoundError: the transformer has no configuration file.
    """
    model = config.actor_rollout_ref.model
    size = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if size == 1:
        return
    for name in ("transformer", SECOND_TRANSFORMER):
        file = Path(model.path) / name / "config.json"
        if name == SECOND_TRANSFORMER and not file.is_file():
            continue
        transformer = json.loads(file.read_text(encoding="utf-8"))
        counts = divided_counts(model.architecture, transformer)
        if any(count % size for count in counts.values()):
            counted = " and ".join(f"{count} {what}" for what, count in counts.items())
            raise ValueError(
                f"{TENSOR_PARALLEL}: {size} does not divide the {counted} of the model's {name}; write {_sizes(counts)}"
            )


def divided_counts(architecture: str | None, transformer: Mapping[str, Any]) -> dict[str, int]:
    """Sizes that the engine divides over accelerators, from a transformer's configuration, by name.

    Empty for a model family that does not say what its engine divides.
    """
    # Imported here: they import torch, which a run without tensor parallelism does not need at this point.
    from verl_omni.pipelines.registry import family
    from verl_omni.pipelines.sample_shapes import sample_shapes

    if family(architecture).shapes is None:
        return {}
    divided = getattr(sample_shapes(architecture), "DIVIDED_BY_ENGINES", {})
    return {what: int(transformer[key]) for key, what in divided.items() if key in transformer}


def _sizes(counts: Mapping[str, int]) -> str:
    common = math.gcd(*counts.values())
    sizes = [str(size) for size in range(1, common + 1) if common % size == 0]
    return " or ".join([*([", ".join(sizes[:-1])] if sizes[1:] else []), sizes[-1]])
