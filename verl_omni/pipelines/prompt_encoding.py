"""`PromptEncoding`: the text encoders of a rollout pipeline, with a cache on disk and a place in CPU memory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from verl_omni.pipelines.prompt_cache import Options, PromptCache, encoder_digest, logger

# Keys of the engine's `custom_pipeline_args`.
FOLDER = "prompt_cache_dir"
OFFLOAD = "offload_text_encoders"
LIBRARIES = ("torch", "transformers", "diffusers", "vllm", "vllm-omni", "omni-operator")
Prompt = TypeVar("Prompt", str, list[int], str | list[int])


class PromptEncoding:
    """Encoding of prompts, mixed into a rollout pipeline before upstream's (`nn.Module`).

    The text encoders are the modules that upstream's `_encoder_modules` names, and are never trained. With
    `rollout.offload_text_encoders` they are in CPU memory, except while prompts are encoded that the cache does not
    have.

    Attributes:
        caches_prompts: whether the family's embeddings depend on nothing but what it hands `encode_prompts`.
    """

    caches_prompts = True
    device: torch.device
    _encoder_modules: Sequence[str]
    _prompt_cache: PromptCache | None = None
    _offloaded: tuple[str, ...] = ()

    def __init__(self, *, od_config: Any, prefix: str = "", **options: Any) -> None:
        super().__init__(od_config=od_config, prefix=prefix, **options)  # type: ignore[call-arg]
        arguments: Mapping[str, Any] = od_config.custom_pipeline_args or {}
        if arguments.get(FOLDER):
            self._prompt_cache = self._open_cache(Path(arguments[FOLDER]), od_config)
        if arguments.get(OFFLOAD) and self._encoder_device.type != "cpu":
            self._offloaded = tuple(self._encoder_modules)
            for encoder in self._encoders():
                encoder.to("cpu")  # some were loaded to the accelerator

    @property
    def _encoder_device(self) -> torch.device:
        device: torch.device = getattr(self, "_execution_device", None) or self.device
        return device

    def encode_prompts(
        self, prompts: Sequence[Prompt], encode: Callable[[list[Prompt]], tuple[Tensor, ...]], options: Options
    ) -> tuple[Tensor, ...]:
        """Tensors [B, ...] of the prompts of a batch, texts or token ids, each distinct one encoded at most once.

        Args:
            encode: tensors [P, ...] of P prompts.
            options: all arguments of `encode` besides the prompts that its result depends on.
        """
        cache = self._prompt_cache
        if cache is None:
            return encode_distinct(prompts, encode)
        device = self._encoder_device
        return encode_distinct(prompts, lambda distinct: cache.encode(distinct, encode, options, device))

    def _open_cache(self, folder: Path, od_config: Any) -> PromptCache:
        began = time.perf_counter()
        device = self._encoder_device
        environment = {
            "pipeline": type(self).__name__,
            "dtype": str(od_config.dtype),
            "device": "cpu" if device.type == "cpu" else torch.get_device_module(device).get_device_name(device),
            **{library: version(library) for library in LIBRARIES},
        }
        cache = PromptCache(folder, encoder_digest(Path(od_config.model), environment), self._encoders_on_device)
        seconds = time.perf_counter() - began
        logger.info("prompt cache: %s (text encoders read in %.1f s)", cache.folder, seconds)
        return cache

    def _encoders(self) -> Iterator[nn.Module]:
        return (getattr(self, name) for name in self._encoder_modules)

    @contextmanager
    def _encoders_on_device(self) -> Iterator[None]:
        """Give the encoders copies of their weights on the device; the weights in CPU memory stay."""
        if not self._offloaded:
            yield
            return
        stores = [
            store
            for encoder in self._encoders()
            for module in encoder.modules()
            for store in (module._parameters, module._buffers)
        ]
        homes = [dict(store) for store in stores]
        copies: dict[int, Tensor] = {}  # by the identity of the weights, which modules may share
        try:
            for store, home in zip(stores, homes, strict=True):
                for name, tensor in home.items():
                    if tensor is not None:
                        if id(tensor) not in copies:
                            copies[id(tensor)] = tensor.detach().to(self._encoder_device)
                        store[name] = copies[id(tensor)]  # type: ignore[assignment]
            yield
        finally:
            for store, home in zip(stores, homes, strict=True):
                store.update(home)  # type: ignore[arg-type]
            copies.clear()
            torch.get_device_module(self._encoder_device).empty_cache()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """`nn.Module`'s, without encoders that stay in CPU memory: the engine moves a loaded pipeline as a whole."""
        modules: dict[str, nn.Module] = self._modules  # type: ignore[attr-defined]
        kept = {name: modules.pop(name) for name in self._offloaded}
        try:
            return super()._apply(fn, recurse)  # type: ignore[misc]
        finally:
            modules |= kept


def encode_distinct(
    prompts: Sequence[Prompt], encode: Callable[[list[Prompt]], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Encode each distinct prompt of a batch, texts or token ids, once.

    Args:
        encode: tensors [P, ...] of P prompts.

    Returns:
        Its tensors for all prompts, [B, ...].
    """
    numbers: dict[str | tuple[int, ...], int] = {}
    distinct: list[Prompt] = []
    index = []
    for prompt in prompts:
        key = prompt if isinstance(prompt, str) else tuple(prompt)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(prompt)
        index.append(numbers[key])
    encoded = encode(distinct)
    if len(distinct) == len(prompts):
        return encoded
    return tuple(tensor[torch.tensor(index, device=tensor.device)] for tensor in encoded)
