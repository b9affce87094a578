"""Components of a model folder as modules of fake tensors: shapes and dtypes of the real ones, and no memory."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from verl_omni.utils.model_folder import boundary_ratio, processor_config
from verl_omni.workers.actor import build

INDEX = "model_index.json"
TRANSFORMER = "transformer"
VAE = "vae"
Configs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """A model in diffusers' folder layout; only its configuration files are read.

    Attributes:
        configs: configuration by component: `transformer`, `vae`, the text encoders, and the `processor` of images.
        classes: class name by component.
        transformers: how many the model has; a second one has the shapes of the first.
    """

    configs: Configs
    classes: Mapping[str, str]
    transformers: int = 1
    _mode: FakeTensorMode = field(default_factory=lambda: FakeTensorMode(allow_non_fake_inputs=True))

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the text encoders."""
        return tuple(name for name in self.classes if name not in (TRANSFORMER, VAE))

    def on_meta(self, component: str, dtype: torch.dtype) -> nn.Module:
        """A component on the meta device, in the dtypes in which `from_pretrained` would load it.

        Raises:
            ValueError: neither diffusers nor transformers has its class.
        """
        name = self.classes[component]
        config = self.configs[component]
        with torch.device("meta"):
            if component in (TRANSFORMER, VAE):
                import diffusers

                kind = _class(diffusers, name)
                module = kind.from_config(dict(config))
                kept = kind._keep_in_fp32_modules
            else:
                import transformers

                kind = _class(transformers, name)
                module = kind(kind.config_class.from_dict(dict(config)))
                # Unlike diffusers, transformers keeps most of these modules in float32 only next to float16.
                kept = kind._keep_in_fp32_modules_strict
        build.cast(module, dtype, frozenset(kept or ()))
        return module

    def as_fake(self, module: nn.Module) -> nn.Module:
        """Replace the tensors of a module by fake ones on the CPU; which parameters need gradients stays."""
        # Tensors replaced one by one: `Module.to` and `to_empty` fail for fake parameters.
        replaced: dict[int, Tensor] = {}
        for part in module.modules():
            for owner in (part._parameters, part._buffers, part.__dict__):
                for name, tensor in list(owner.items()):
                    if isinstance(tensor, Tensor):
                        if id(tensor) not in replaced:  # tied weights stay tied
                            replaced[id(tensor)] = self._fake(tensor)
                        owner[name] = replaced[id(tensor)]
        return module

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A fake tensor on the CPU."""
        with self._mode:
            return torch.empty(shape, dtype=dtype, device="cpu")

    def _fake(self, tensor: Tensor) -> Tensor:
        with self._mode:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        return nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def read(folder: Path) -> ModelShapes:
    """Read the configuration files of a model folder.

    Raises:
        FileNotFoundError: one is missing; the message names it.
    """
    index = json.loads(_existing(folder / INDEX).read_text())
    configs = {}
    classes = {}
    for component, entry in index.items():
        if isinstance(entry, list) and (component in (TRANSFORMER, VAE) or component.startswith("text_encoder")):
            configs[component] = json.loads(_existing(folder / component / "config.json").read_text())
            classes[component] = entry[1]
    if (processor := processor_config(folder)) is not None:
        configs["processor"] = processor
    return ModelShapes(configs, classes, 1 if boundary_ratio(folder) is None else 2)


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors; one that appears twice counts once."""
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; drl fit needs the configuration files of the whole model")
    return path


def _class(library: Any, name: str) -> Any:
    kind = getattr(library, name, None)
    if kind is None:
        raise ValueError(f"{library.__name__} has no class {name}, which {INDEX} names")
    return kind
