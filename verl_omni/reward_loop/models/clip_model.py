"""CLIP models for scoring: embeddings of images and prompts (arXiv:2103.00020), loaded once per process."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.models.weight_files import failures, folder_with
from verl_omni.reward_loop.part_settings import TRAINER
from verl_omni.reward_loop.setting_types import MODEL, PROCESSOR
from verl_omni.utils.model_folder import model_folder

CONFIG = "config.json"
PROCESSOR_CONFIG = "preprocessor_config.json"
_LOADED: dict[tuple[Any, ...], Any] = {}
_RESTING: set[tuple[Any, ...]] = set()  # keys of `_LOADED` whose tensors are in CPU memory
_LOADING = threading.Lock()  # scorers run in threads


class LoadableModel(ABC):
    """Base class of models that `load_once` loads."""

    __slots__ = ()

    model: Any  # a module of torch
    device: torch.device  # where the model is loaded, and computes

    @classmethod
    @abstractmethod
    def load(cls, *source: str) -> Self:
        """Load the model of the arguments of `load_once`."""

    @classmethod
    @abstractmethod
    def problems(cls, *source: str) -> list[str]:
        """Messages about what is missing on this machine for `load`, whose arguments these are without the device."""

    def move(self, device: torch.device) -> None:
        """Move all tensors to a device."""
        self.model.to(device)


@dataclass(frozen=True, slots=True)
class ScoringModel(LoadableModel):
    """A model in fp32 that embeds prompts and what is compared with them.

    Attributes:
        model, tokenizer: of transformers. device: where the model is.
    """

    model: Any
    tokenizer: Any
    device: torch.device

    @property
    @abstractmethod
    def longest_prompt(self) -> int:
        """Tokens after which a prompt is cut, where the model's positions end."""

    @torch.inference_mode()
    def embed_prompts(self, prompts: Sequence[str]) -> Tensor:
        """Embeddings of length 1, fp32 [B, width] on the CPU, of prompts cut after `longest_prompt` tokens."""
        different = list(dict.fromkeys(prompts))  # the samples of a prompt share it
        inputs = self.tokenizer(
            different, padding=True, truncation=True, return_tensors="pt", max_length=self.longest_prompt
        ).to(self.device)
        embeddings = unit(self.model.get_text_features(**inputs).pooler_output)
        return embeddings[[different.index(prompt) for prompt in prompts]]


Model = TypeVar("Model", bound=LoadableModel)


def load_once(kind: type[Model], *source: str) -> Model:
    """A model of a class, loaded at the first call of this process with these arguments.

    Args:
        source: arguments of `kind.load`: folders, or repositories of the hub that are in the local cache, and the
            device, such as `cpu`.

    Raises:
        FileNotFoundError: as `load_problems`.
        ValueError: it is not a model of that class with all its weights, or the device cannot be used.
    """
    with _LOADING:
        if (key := (kind, *source)) not in _LOADED:
            if problems := load_problems(kind, *source):
                raise FileNotFoundError("; ".join(problems))
            _LOADED[key] = kind.load(*source)
        model: Model = _LOADED[key]
        if key in _RESTING:
            model.move(model.device)
            _RESTING.remove(key)
        return model


def load_problems(kind: type[LoadableModel], *source: str) -> list[str]:
    """Messages about what is missing on this machine for `load_once`; no weights are loaded."""
    *files, device = source
    problems = kind.problems(*files)
    try:
        torch.device("cpu" if device == TRAINER else device)
    except RuntimeError as error:
        problems.append(f"device: {error}")
    return problems


def rest() -> None:
    """Move the models on accelerators to CPU memory until they are used again, and free the accelerators' memory."""
    with _LOADING:
        for key, loaded in _LOADED.items():
            if loaded.device.type == "cpu" or key in _RESTING:
                continue
            loaded.move(torch.device("cpu"))
            _RESTING.add(key)
            torch.get_device_module(loaded.device).empty_cache()


@dataclass(frozen=True, slots=True)
class ClipModel(ScoringModel):
    """A CLIP model with its image processor, loaded from (model, processor, device)."""

    image_processor: Any

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

        model, processor, device = source
        folder = model_folder(model, MODEL)
        inputs = model_folder(processor, PROCESSOR)
        return cls(
            model=load_scoring_model(CLIPModel, "clip", folder, device),
            tokenizer=CLIPTokenizer.from_pretrained(inputs),
            device=torch.device(device),
            image_processor=CLIPImageProcessor.from_pretrained(inputs),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        model, *processor = source
        if not processor:  # of a scorer without that setting
            return failures(lambda: folder_with(model, MODEL, "a CLIP model", CONFIG, PROCESSOR_CONFIG))
        return failures(
            lambda: folder_with(model, MODEL, "a CLIP model", CONFIG),
            lambda: folder_with(*processor, PROCESSOR, "a CLIP model", PROCESSOR_CONFIG),
        )

    @property
    @override
    def longest_prompt(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return int(self.model.config.projection_dim)

    @property
    def logit_scale(self) -> float:
        """The factor of the cosine that the model was trained with."""
        return float(self.model.logit_scale.exp())

    @torch.inference_mode()
    def embed_images(self, images: Sequence[Tensor]) -> Tensor:
        """Embeddings of length 1, fp32 [B, width] on the CPU, of images uint8 [3, H, W]."""
        inputs = self.image_processor(images=list(images), return_tensors="pt").to(self.device)
        return unit(self.model.get_image_features(**inputs).pooler_output)

    def cosines(self, images: Sequence[Tensor], prompts: Sequence[str]) -> Tensor:
        """Cosine of each image with its prompt, fp32 [B]."""
        return (self.embed_images(images) * self.embed_prompts(prompts)).sum(dim=1)


def unit(embeddings: Tensor) -> Tensor:
    """Embeddings of length 1, fp32 on the CPU."""
    return torch.nn.functional.normalize(embeddings.float().cpu(), dim=1)


def load_scoring_model(model_class: Any, model_type: str, folder: Path, device: str) -> Any:
    """A model of transformers in fp32, without gradients.

    Raises:
        ValueError: the folder has a model of another type or lacks weights, or the device cannot be used.
    """
    from transformers import AutoConfig

    kind = AutoConfig.from_pretrained(folder).model_type
    if kind != model_type:
        raise ValueError(f"{MODEL}: {folder} has a model of type {kind!r}, not {model_type!r}")
    model, loading = model_class.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):  # transformers would score with random ones
        raise ValueError(f"{MODEL}: {folder} lacks {len(missing)} weights, such as {missing[0]}")
    return to_device(model, device)


def to_device(made: Any, device: str) -> Any:
    """A model of transformers without gradients, on a device.

    Raises:
        ValueError: the device cannot be used.
    """
    try:
        return made.eval().requires_grad_(False).to(device)
    except (RuntimeError, AssertionError) as error:  # torch built without the device asserts
        raise ValueError(
            f"device: this reward worker cannot use {device!r} ({str(error).splitlines()[0]}); write cpu, or serve the "
            "model yourself and use the scorer http_batch"
        ) from error


def prompts_of(extra_infos: Sequence[Mapping[str, Any]], scorer: str, media: str = "image") -> list[str]:
    """The prompt of each sample.

    Args:
        media: what the scorer compares with it, for the message.

    Raises:
        ValueError: a sample has none.
    """
    if not all(isinstance(info.get("prompt"), str) for info in extra_infos):
        raise ValueError(
            f"{scorer} compares the {media} with its prompt, and a sample's extra_info has no text `prompt`"
        )
    return [info["prompt"] for info in extra_infos]
