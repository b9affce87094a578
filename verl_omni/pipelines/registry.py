"""Registry of model families, by the architecture of a model: each family is a folder of this package.

A folder's `__init__` describes it (`description.py`). `engine_pipeline.py` is what the engine imports, `training.py`
what the trainer imports. Nothing else refers to a family by name (docs/reference/model-families.md). Users add theirs
with `verl_omni.extensions`. Importing this module imports neither torch nor verl.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from verl_omni import pipelines
from verl_omni.pipelines.description import Family, FamilyDescription, FamilySizes
from verl_omni.settings_schema.engine_settings import GROUP
from verl_omni.utils.registry import Registry, load, merged

if TYPE_CHECKING:
    import torch
    from torch import Tensor

POST_PROCESS = "get_post_process_func"
IMAGE_SHIFT = "{} generates images, whose noise levels have the shift of the model's scheduler"
PROMPT_CACHE_DIR = "actor_rollout_ref.rollout.prompt_cache_dir"
PROMPT_CACHE = ("enable_prompt_embed_cache", "prompt_embed_cache_size")
NEGATIVE = "negative_"  # prefix of the conditions that only guidance reads
# Token ids and text of a prompt, to why the engine refuses it; None if it takes it.
PromptCheck = Callable[[Sequence[int], str], str | None]


def _folders() -> dict[str, FamilyDescription]:
    """The descriptions of this package's families, by the names of their folders."""
    names = (module.name for module in pkgutil.iter_modules(pipelines.__path__) if module.ispkg)
    return {name: importlib.import_module(f"{pipelines.__name__}.{name}").FAMILY for name in names}


FOLDERS = _folders()
FAMILIES = Registry(
    "model family", merged("architecture", {name: folder.architectures for name, folder in FOLDERS.items()})
)


def lent_folder(*, videos: bool = False) -> str:
    """Folder of the family that stands for others with such samples: its example is lent (`description.Example`)."""
    lent = (name for name, entry in FOLDERS.items() if entry.example and entry.example.lent and entry.videos == videos)
    return next(lent)


# Paths of models of the reference's families that do not exist here: the names of their repositories begin so.
_MISSING = re.compile(r"(?:.*/)?(?P<family>BAGEL|LTX|MiniMax-H3)[^/]*", re.IGNORECASE)


def missing_family(path: str) -> str | None:
    """The reference's family that a model's path or id names, if there is no such family here."""
    match = _MISSING.fullmatch(path)
    return match["family"] if match else None


class TrainingAdapter(Protocol):
    """Interface of a family for trainer and agent loop: the module `training` of its folder, or an object.

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


# What every training adapter has.
MEMBERS = (*TrainingAdapter.__annotations__, "guidance", "prompt_rows", "velocity")


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


def check_prompt_cache(architecture: str | None, size: int) -> None:
    """Refuse `rollout.prompt_cache_dir` for a model whose embeddings it cannot keep.

    Args:
        size: accelerators of an engine, under tensor parallelism.

    Raises:
        ValueError: they depend on input images, or the engine's ranks encode prompts together.
    """
    if family(architecture).caches_prompts is False:
        refuse_prompt_cache(architecture)
    if family(architecture).divides_encoders and size > 1:
        raise ValueError(
            f"{PROMPT_CACHE_DIR}: with tensor_model_parallel_size={size}, the accelerators of an engine share a text "
            f"encoder of {architecture}, and each would look into the cache alone; write null"
        )


def refuse_prompt_cache(architecture: str | None) -> NoReturn:
    """Refuse `rollout.prompt_cache_dir` for a model.

    Raises:
        ValueError: always.
    """
    raise ValueError(
        f"{PROMPT_CACHE_DIR}: prompt embeddings of {architecture} depend on more than the prompt; write null"
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
    if family(architecture).videos:
        # Its stage of a pipeline that it registers itself has no field for them.
        dropped = f"vLLM-Omni 0.30 does not hand it to {architecture}; a batch encodes each prompt once anyway"
        yield from ((name, dropped) for name in PROMPT_CACHE if name in given)


def check_encoder(architecture: str | None) -> None:
    """Refuse a model whose family has no encoder.

    Raises:
        ValueError: the message lists the architectures that have one.
    """
    if family(architecture).encoder is None:
        known = ", ".join(name for name, registered in FAMILIES.items() if registered.encoder is not None)
        raise ValueError(f"algorithm.sample_source: offline is supported for {known}, not for {architecture}")


def encoder_class(architecture: str | None) -> Any:
    """Import the class that encodes prompts and images of a model's family, from the module `encoding` of its folder.

    Raises:
        ValueError: no family has this architecture, or its family has no encoder.
    """
    check_encoder(architecture)
    return load(str(family(architecture).encoder))


def family_sizes(folder: str) -> FamilySizes:
    """Import the sizes of the models of a family of this package."""
    return cast(FamilySizes, importlib.import_module(f"{pipelines.__name__}.{folder}.sizes"))


def training_adapter(architecture: str | None) -> TrainingAdapter:
    """Import the training adapter of a model's family.

    Raises:
        ValueError: no family has this architecture.
    """
    adapter = load(family(architecture).training)
    return cast(TrainingAdapter, adapter() if isinstance(adapter, type) else adapter)
