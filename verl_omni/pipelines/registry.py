"""Registry of model families, by the architecture of a model: each family is a folder of this package.

A folder has `engine_pipeline.py`, which the engine imports, and `training.py`, which the trainer imports. Nothing else
refers to a family by name (docs/model-families.md).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor

POST_PROCESS = "get_post_process_func"


@dataclass(frozen=True, slots=True)
class Family:
    """A folder of `verl_omni.pipelines`, and the name of the pipeline class in its `engine_pipeline.py`.

    `engine_pipeline.py` also has `get_post_process_func`, the factory of the function that turns a decoded sample into
    the form that the request asked for.

    Attributes:
        pre_process: name of the factory in `engine_pipeline.py` of the function that checks a request before it is
            queued; None: the engine's own for the architecture, if there is one.
    """

    folder: str
    pipeline: str
    pre_process: str | None = None

    @property
    def engine_module(self) -> str:
        """The module that the engine imports."""
        return f"{__package__}.{self.folder}.engine_pipeline"

    @property
    def pipeline_class(self) -> str:
        """`module.Class`, as the engine's `custom_pipeline_args` wants it."""
        return f"{self.engine_module}.{self.pipeline}"


FAMILIES = {
    "QwenImagePipeline": Family("qwen_image", "QwenImageRolloutPipeline"),
    "StableDiffusion3Pipeline": Family("sd3", "SD3RolloutPipeline", "get_pre_process_func"),
    "WanPipeline": Family("wan", "WanRolloutPipeline"),
}


class TrainingAdapter(Protocol):
    """What the trainer and the agent loop need to know of a family: the module `training.py` of its folder.

    Attributes:
        CONDITIONS: names of the tensors, one of each for a sample, that `velocity` reads from a batch. Those for
            guidance are there only with guidance.
        LAYERS: prefixes of the transformer's layers that FSDP2 shards one by one (`<prefix><index>`).
        LORA_TARGETS: endings of the names of the linear layers that get an adapter when the settings name none.
        CHAT_TEMPLATE: Jinja template by which prompts become token ids; None where the tokenizer's own is right, or
            where prompts are plain text.
    """

    CONDITIONS: tuple[str, ...]
    LAYERS: tuple[str, ...]
    LORA_TARGETS: tuple[str, ...]
    CHAT_TEMPLATE: str | None

    def guidance(self, pipeline: Any) -> float:
        """The scale of classifier-free guidance that the engine uses under these settings; 1 is none."""

    def prompt_rows(self, max_sequence_length: int, tokenizer_length: int) -> int:
        """The most rows that the embeddings of a prompt have.

        Args:
            max_sequence_length: the setting.
            tokenizer_length: `model_max_length` of the model's first tokenizer.
        """

    def velocity(
        self, transformer: Any, batch: Mapping[str, Tensor], x: Tensor, timestep: Tensor, guidance_scale: float
    ) -> Tensor:
        """What the model predicts for latents `x` [B, ...] at `timestep` [B], float32 of the same shape."""


def family(architecture: str | None) -> Family:
    """Find the family of a model.

    Args:
        architecture: `_class_name` of its `model_index.json`.

    Raises:
        ValueError: there is none for the architecture; the message lists those that there are.
    """
    if architecture not in FAMILIES:
        raise ValueError(f"No model family for architecture {architecture!r}; one of {sorted(FAMILIES)}")
    return FAMILIES[architecture]


def training_adapter(architecture: str | None) -> TrainingAdapter:
    """Import the training side of a model's family.

    Raises:
        ValueError: there is no family for the architecture.
    """
    module = importlib.import_module(f"{__package__}.{family(architecture).folder}.training")
    return cast(TrainingAdapter, module)
