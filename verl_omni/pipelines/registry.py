"""Registry of model families, by the architecture of a model: each family is a folder of this package.

A folder has `engine_pipeline.py`, which the engine imports, and `training.py`, which the trainer imports. Nothing else
refers to a family by name (docs/reference/model-families.md). Users add theirs with `verl_omni.extensions`. Importing
this module imports neither torch nor verl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from verl_omni.settings_schema.engine_settings import GROUP
from verl_omni.utils.registry import Registry, load

if TYPE_CHECKING:
    import torch
    from torch import Tensor

POST_PROCESS = "get_post_process_func"
IMAGE_SHIFT = "{} generates images, whose noise levels have the shift of the model's scheduler"
NEGATIVE = "negative_"  # prefix of the conditions that only guidance reads
# Token ids and text of a prompt, to why the engine refuses it; None if it takes it.
PromptCheck = Callable[[Sequence[int], str], str | None]


@dataclass(frozen=True, slots=True)
class Family:
    """Import paths of a family's parts.

    Attributes:
        pipeline: `module:Class` of the engine's pipeline. The module also has `get_post_process_func`, the factory of
            the function that turns a decoded sample into the form that the request asked for.
        training: the `TrainingAdapter`: a module, `module:`, or a class, `module:Class`.
        pre_process: name of the factory in the pipeline's module of the function that checks a request before it is
            queued; None: the engine's own for the architecture, if there is one.
        encoder: `module:Class` that encodes prompts and images for training without the engine; None: there is none.
        shapes: module with the shapes of samples (`sample_shapes.SampleShapes`); None: there is none.
        images: module about input images of prompts (`input_images.InputImages`); None: prompts have no images.
        experts: whether a model may have a second transformer for low noise levels. The first argument of `velocity`
            is then `workers.actor.experts.Experts`, and the engine's pipeline calls the transformer of each step.
        videos: whether its samples are videos [T, 3, H, W], which scorers of images refuse.
        stepwise: whether the engine can run its steps one at a time (`rollout.step_execution`); None: the pipeline's
            `supports_step_execution` says it when the engine starts.
    """

    pipeline: str
    training: str
    pre_process: str | None = None
    encoder: str | None = None
    shapes: str | None = None
    images: str | None = None
    experts: bool = False
    videos: bool = False
    stepwise: bool | None = None

    @property
    def folder(self) -> str:
        """Name of the package that the pipeline's module is in."""
        return self.engine_module.rpartition(".")[0].rpartition(".")[2]

    @property
    def engine_module(self) -> str:
        """Name of the module that the engine imports."""
        return self.pipeline.partition(":")[0]

    @property
    def pipeline_class(self) -> str:
        """`module.Class`, as in the engine's `custom_pipeline_args`."""
        return self.pipeline.replace(":", ".")


def _own(folder: str, pipeline: str, pre_process: str | None = None, encoder: str | None = None) -> Family:
    package = f"{__package__}.{folder}"
    return Family(
        f"{package}.engine_pipeline:{pipeline}",
        f"{package}.training:",
        pre_process,
        f"{package}.encoding:{encoder}" if encoder else None,
        f"{package}.shapes",
        stepwise=folder in ("qwen_image", "sd3"),
    )


def _editing(variant: str) -> Family:
    own = _own("qwen_image_edit", f"{variant}RolloutPipeline", "get_pre_process_func")
    package = f"{__package__}.qwen_image_edit"
    return replace(own, training=f"{package}.training:{variant}Training", images=f"{package}.images")


FAMILIES = Registry(
    "model family",
    {
        "QwenImageEditPipeline": _editing("QwenImageEdit"),
        "QwenImageEditPlusPipeline": _editing("QwenImageEditPlus"),
        "QwenImagePipeline": _own("qwen_image", "QwenImageRolloutPipeline", "get_pre_process_func"),
        "StableDiffusion3Pipeline": _own("sd3", "SD3RolloutPipeline", "get_pre_process_func", "SD3Encoder"),
        "WanPipeline": replace(_own("wan", "WanRolloutPipeline", "get_pre_process_func"), experts=True, videos=True),
    },
)

# Paths of models of the reference's families that do not exist here: the names of their repositories begin so.
_MISSING = re.compile(r"(?:.*/)?(?P<family>BAGEL|LTX|MiniMax-H3)[^/]*", re.IGNORECASE)


def missing_family(path: str) -> str | None:
    """The reference's family that a model's path or id names, if there is no such family here."""
    found = _MISSING.fullmatch(path)
    return found["family"] if found else None


class TrainingAdapter(Protocol):
    """Interface of a family for trainer and agent loop: a module such as `sd3/training.py`, or an object.

    Attributes:
        CONDITIONS: names of the per-sample tensors that `velocity` reads from a batch; those for guidance exist only
            with guidance, and their names begin with `NEGATIVE`.
        LAYERS: name prefixes of the layers that FSDP2 shards one by one (`<prefix><index>`).
        LORA_TARGETS: suffixes of the linear layers to adapt unless the settings list others, e.g. `attn.to_q`.
        CHAT_TEMPLATE: Jinja chat template of prompts; None for the tokenizer's own, or for plain text.

    It may have `NOT_ADAPTED`, a regular expression of the linear layers that the engine's LoRA does not reach:
    `target_modules=all-linear` leaves them out. `LONGEST_TOKENIZER` is the folder of the tokenizer whose text encoder
    reads the first `max_sequence_length` tokens of a prompt, where the engine cuts longer ones off. `PADS_PROMPTS` is
    true if every prompt has `prompt_rows` rows. `SCHEDULERS` lists the classes of schedulers that its models may have,
    and `DYNAMIC_SHIFT` says whether one may depend on a sample's size (`scheduler_config.py`). `MOST_TOKENS` is the
    engine's limit of `max_sequence_length`. `prompt_check(tokenizer, max_sequence_length) -> PromptCheck` is there if
    the engine refuses some prompts; `tokenizer` is the model's first.
    """

    CONDITIONS: tuple[str, ...]
    LAYERS: tuple[str, ...]
    LORA_TARGETS: tuple[str, ...]
    CHAT_TEMPLATE: str | None

    def guidance(self, pipeline: Any) -> float:
        """Scale of classifier-free guidance that the engine uses with these settings; 1: no guidance."""

    def prompt_rows(self, max_sequence_length: int, tokenizer_length: int) -> int:
        """Maximum number of rows of a prompt's embeddings.

        Args:
            max_sequence_length: the setting of the pipeline.
            tokenizer_length: `model_max_length` of the model's first tokenizer.
        """

    def velocity(
        self,
        transformer: Any,
        batch: Mapping[str, Tensor],
        x: Tensor,
        timestep: Tensor,
        guidance_scale: float,
        *,
        dtype: torch.dtype,
    ) -> Tensor:
        """Predicted velocity, float32 in the shape of `x`, of latents `x` [B, ...] at `timestep` [B].

        With guidance, the transformer runs once, on a batch of both prompts.

        Args:
            dtype: dtype that the transformer computes in.
        """


def reads_extra_ids(architecture: str | None) -> bool:
    """Whether a family may read `extra_prompt_ids`; built-in families tokenize for each text encoder themselves."""
    return architecture in FAMILIES.registered


def family(architecture: str | None) -> Family:
    """The family of a model.

    Args:
        architecture: `_class_name` in its `model_index.json`.

    Raises:
        ValueError: no family has this architecture; the message lists the supported ones.
    """
    if architecture is None or architecture not in FAMILIES:
        raise ValueError(f"No model family for architecture {architecture!r}; one of {sorted(FAMILIES)}")
    return FAMILIES[architecture]


def refuse_steps(architecture: str | None) -> NoReturn:
    """Refuse `rollout.step_execution` for a model whose pipeline generates whole requests.

    Raises:
        ValueError: always.
    """
    raise ValueError(
        f"actor_rollout_ref.rollout.step_execution: {architecture} is generated as whole requests only; write false"
    )


def check_engine_settings(architecture: str | None, given: Mapping[str, Any]) -> None:
    """Refuse settings of the engine (`engine_kwargs.vllm_omni`) that a model's family cannot take.

    Raises:
        ValueError: there is one.
    """
    if given.get("enable_prompt_embed_cache") and family(architecture).images is not None:
        raise ValueError(
            f"{GROUP}.enable_prompt_embed_cache: embeddings of {architecture} depend on the input images, and the "
            "cache looks only at the text; write false"
        )


def unread_engine_settings(architecture: str | None, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, reason) of each setting of the engine that a model's family does not read."""
    if not family(architecture).experts and "boundary_ratio" in given:
        yield "boundary_ratio", f"{architecture} has one transformer"
    if not family(architecture).videos and "flow_shift" in given:
        yield "flow_shift", IMAGE_SHIFT.format(architecture)


def check_encoder(architecture: str | None) -> None:
    """Refuse a model whose family has no encoder.

    Raises:
        ValueError: the message lists the architectures that have one.
    """
    if family(architecture).encoder is None:
        known = ", ".join(name for name, each in FAMILIES.items() if each.encoder is not None)
        raise ValueError(f"algorithm.sample_source: offline is supported for {known}, not for {architecture}")


def encoder_class(architecture: str | None) -> Any:
    """Import the class that encodes prompts and images of a model's family; it has the interface of `SD3Encoder`.

    Raises:
        ValueError: no family has this architecture, or its family has no encoder.
    """
    check_encoder(architecture)
    return load(str(family(architecture).encoder))


def training_adapter(architecture: str | None) -> TrainingAdapter:
    """Import the training adapter of a model's family.

    Raises:
        ValueError: no family has this architecture.
    """
    found = load(family(architecture).training)
    return cast(TrainingAdapter, found() if isinstance(found, type) else found)
