"""`SavedAdapter`: a LoRA adapter in files of peft or diffusers, which training continues from."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from verl_omni.utils.adapter_folder import DIFFUSERS_FILE, DIFFUSERS_METADATA, PEFT_FILE, PEFT_SETTINGS
from verl_omni.utils.model_folder import SECOND_TRANSFORMER
from verl_omni.utils.model_layout import plain_folder
from verl_omni.weight_sync.checks import check_settings
from verl_omni.weight_sync.errors import IncompleteUpdate, UnsupportedAdapter, summarize_names
from verl_omni.weight_sync.names import adapter_modules
from verl_omni.workers.actor.tensor_files import TensorFiles

FIRST_TRANSFORMER = "transformer"
FUSE = (
    'fuse it into the base and train that model: python3 -c "from diffusers import DiffusionPipeline as P; '
    "p = P.from_pretrained('BASE'); p.load_lora_weights('ADAPTER'); p.fuse_lora(); p.unload_lora_weights(); "
    "p.save_pretrained('FUSED')\""
)
# In front of a layer's name: peft's wrapper and the transformer's name.
_PREFIX = re.compile(rf"(base_model\.model\.)?((?P<component>{FIRST_TRANSFORMER}|{SECOND_TRANSFORMER})\.)?")
_HALF = re.compile(r"(?P<module>.+)\.(?P<half>lora_[AB])(\.default)?\.weight")
_FIRST_LAYERS = re.compile(r"^.*?\.\d+\.")


class AdapterNotUsable(ValueError):
    """Training cannot continue from an adapter; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """An adapter as its files describe it.

    Attributes:
        rank, alpha: the same for all layers; their output is scaled by alpha / rank.
        shapes: by transformer, `transformer` or `transformer_2`: the adapted layers, each with its (inputs, outputs).
        sources: by transformer: the safetensors file, and the name in it of each tensor, by `<layer>.lora_A.weight`
            [rank, inputs] and `<layer>.lora_B.weight` [outputs, rank].
    """

    rank: int
    alpha: int
    shapes: dict[str, dict[str, tuple[int, int]]]
    sources: dict[str, tuple[Path, dict[str, str]]]

    def tensors(self, component: str) -> dict[str, Tensor]:
        """Tensors of a transformer's adapter, by `<layer>.lora_A.weight` and `<layer>.lora_B.weight`, in CPU memory."""
        path, names = self.sources[component]
        with _opened(path) as file:
            return {name: file.get_tensor(stored) for name, stored in names.items()}

    @property
    def layers(self) -> list[str]:
        """Names of the adapted layers, the same in every transformer."""
        return sorted(self.shapes[FIRST_TRANSFORMER])

    def targets(self, linear_layers: Sequence[str]) -> list[str] | str:
        """Value of `target_modules` that adapts the layers of this adapter, and no others.

        Args:
            linear_layers: names of the model's layers.
        """
        suffixes = sorted({_FIRST_LAYERS.sub("", layer) for layer in self.layers})
        if select_layers(suffixes, linear_layers) == self.layers:
            return suffixes
        return "|".join(map(re.escape, self.layers))


def read(path: Path) -> SavedAdapter:
    """Read the description of an adapter; of its tensors only names and shapes.

    Args:
        path: a safetensors file, or a folder with one of diffusers (`pytorch_lora_weights.safetensors`; of a second
            transformer in the folder `transformer_2`) or of peft (`adapter_model.safetensors`, `adapter_config.json`).

    Raises:
        FileNotFoundError: there is no such file.
        AdapterNotUsable: the files are no LoRA adapter of transformers, or one that this trainer cannot train.
    """
    file = _weights_file(path)
    second = file.parent / SECOND_TRANSFORMER / file.name
    files = [(file, FIRST_TRANSFORMER), *([(second, SECOND_TRANSFORMER)] if second.is_file() else [])]
    shapes: dict[str, dict[str, tuple[int, int]]] = {}
    sources: dict[str, tuple[Path, dict[str, str]]] = {}
    scales: set[tuple[int, float]] = set()
    try:
        for source, component in files:
            with _opened(source) as opened:
                settings = _settings(source, opened.metadata() or {})
                names, alphas = _names(component, opened)
                for part, tensors in names.items():
                    part_shapes = _layer_shapes(tensors, opened)
                    shapes[part] = {layer: (inputs, outputs) for layer, (inputs, outputs, _) in part_shapes.items()}
                    sources[part] = (source, tensors)
                    ranks = {rank for _, _, rank in part_shapes.values()}
                    scales |= {(rank, _alpha(settings, alphas, rank)) for rank in ranks}
    except (UnsupportedAdapter, IncompleteUpdate) as error:
        raise AdapterNotUsable(f"{file}: {error}; {FUSE}") from error
    if not scales:
        raise AdapterNotUsable(f"{file} has no LoRA tensors; write the file of an adapter")
    if len(scales) > 1:
        shown = ", ".join(f"{rank} and {alpha:g}" for rank, alpha in sorted(scales))
        raise AdapterNotUsable(f"{file}: its layers have several ranks and alphas: {shown}; {FUSE}")
    rank, alpha = scales.pop()
    if not float(alpha).is_integer():
        raise AdapterNotUsable(f"{file}: its alpha is {alpha:g}, no whole number; {FUSE}")
    if FIRST_TRANSFORMER not in shapes or any(
        part.keys() != shapes[FIRST_TRANSFORMER].keys() for part in shapes.values()
    ):
        raise AdapterNotUsable(f"{file}: its two transformers have other layers adapted; {FUSE}")
    return SavedAdapter(rank, int(alpha), shapes, sources)


def check_base(adapter: SavedAdapter, base: Path, path: str) -> list[str]:
    """Check that the layers of an adapter are in a model. Returns the names of the model's linear layers.

    Args:
        base: folder of the model; without weights, nothing is compared. path: path of the adapter, for messages.

    Raises:
        AdapterNotUsable: the model lacks a layer or a transformer, or has another size of it.
    """
    base = plain_folder(base)
    components = [name for name in (FIRST_TRANSFORMER, SECOND_TRANSFORMER) if any((base / name).glob("*.safetensors"))]
    if not components:
        return adapter.layers  # `drl fit` reads no weights
    if missing := set(components) ^ adapter.shapes.keys():
        raise AdapterNotUsable(f"{path} and the model {base} do not both have {' and '.join(sorted(missing))}; {FUSE}")
    linear: dict[str, tuple[int, ...]] = {}
    for component in components:
        with TensorFiles(base / component) as files:
            sizes = files.shapes()
        linear = {
            name.removesuffix(".weight"): size
            for name, size in sizes.items()
            if name.endswith(".weight") and len(size) == 2
        }
        for layer, (inputs, outputs) in adapter.shapes[component].items():
            if linear.get(layer) != (outputs, inputs):
                size = f"{linear[layer][1]} and {linear[layer][0]}" if layer in linear else "no such layer"
                raise AdapterNotUsable(
                    f"{path} is of another model: it adapts {layer} with {inputs} inputs and {outputs} outputs, and "
                    f"{base / component} has {size}. If diffusers loads it for this model, {FUSE}"
                )
    return list(linear)


def select_layers(targets: Sequence[str] | str, names: Sequence[str]) -> list[str]:
    """The names that `target_modules` selects, sorted: a regular expression, or suffixes, as peft reads them. PURE."""
    if isinstance(targets, str):
        return sorted(name for name in names if re.fullmatch(targets, name))
    return sorted(name for name in names if any(f".{name}".endswith(f".{target}") for target in targets))


def _weights_file(path: Path) -> Path:
    if path.is_file() and path.suffix == ".safetensors":
        return path
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; write the folder of an adapter")
    for name in (PEFT_FILE, DIFFUSERS_FILE):  # a run writes both, and the trained tensors into the first
        if (path / name).is_file():
            return path / name
    pickled = (
        path.is_file()
        or (path / PEFT_FILE).with_suffix(".bin").is_file()
        or (path / DIFFUSERS_FILE).with_suffix(".bin").is_file()
    )
    if pickled:
        raise AdapterNotUsable(f"{path}: adapters are read from safetensors files only; {FUSE}")
    others = sorted(path.glob("*.safetensors"))
    if len(others) != 1:
        shown = summarize_names(file.name for file in others) if others else "no other safetensors file"
        raise FileNotFoundError(
            f"{path} has neither {DIFFUSERS_FILE} (diffusers) nor {PEFT_FILE} (peft), and {shown}; "
            "write the file's path"
        )
    return others[0]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, "pt")
    except SafetensorError as error:
        raise AdapterNotUsable(f"{path} is no safetensors file, or only a part of one: {error}") from error
    with file as opened:
        yield opened


def _settings(file: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Settings of peft's `LoraConfig` that the files have; empty: none."""
    config = file.with_name(PEFT_SETTINGS)
    if file.name == PEFT_FILE and not config.is_file():
        raise FileNotFoundError(
            f"{config} does not exist: peft writes it next to {PEFT_FILE}, with the adapter's alpha"
        )
    if file.name == PEFT_FILE:
        settings = _object(config.read_text(encoding="utf-8"), str(config))
        if settings.get("peft_type") != "LORA":
            raise UnsupportedAdapter(f"{PEFT_SETTINGS} has peft_type {settings.get('peft_type')!r}, not LORA")
    else:
        described = _object(metadata.get(DIFFUSERS_METADATA, "{}"), f"{DIFFUSERS_METADATA} of {file}")
        prefix = f"{FIRST_TRANSFORMER}."
        settings = {name.removeprefix(prefix): described[name] for name in described if name.startswith(prefix)}
    if settings:
        check_settings(settings, base_synced=False)
    if settings.get("use_rslora"):
        raise UnsupportedAdapter("it was trained with use_rslora, which scales by alpha / sqrt(rank)")
    return settings


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise AdapterNotUsable(f"{source} is not valid JSON: {error}; download or save the adapter again") from error
    if not isinstance(parsed, dict):
        raise AdapterNotUsable(f"{source} is not a JSON object; download or save the adapter again")
    return parsed


def _names(component: str, opened: Any) -> tuple[dict[str, dict[str, str]], set[float]]:
    """By transformer the tensors' names in the file, by `<layer>.lora_A.weight`; and the values of all `.alpha`.

    Args:
        component: the transformer of tensors whose names do not say it.
    """
    names: dict[str, dict[str, str]] = {}
    alphas: set[float] = set()
    for stored in opened.keys():  # noqa: SIM118 - not a mapping
        prefix = _PREFIX.match(stored)
        assert prefix is not None  # it matches the empty text
        name = stored[prefix.end() :]
        half = _HALF.fullmatch(name)
        if stored.endswith(".alpha"):
            alpha = opened.get_tensor(stored)
            if alpha.numel() != 1:
                raise UnsupportedAdapter(f"{stored} has {alpha.numel()} values, not one")
            alphas.add(float(alpha))
        elif half is None or name.startswith(("text_encoder", "unet.")):
            raise UnsupportedAdapter(f"{stored} is no LoRA tensor of a transformer, <layer>.lora_A.weight or lora_B")
        else:
            transformer = component if component == SECOND_TRANSFORMER else prefix["component"] or component
            names.setdefault(transformer, {})[f"{half['module']}.{half['half']}.weight"] = stored
    return names, alphas


def _layer_shapes(names: Mapping[str, str], opened: Any) -> dict[str, tuple[int, int, int]]:
    """(inputs, outputs, rank) of each layer."""
    shapes = {}
    for layer in sorted(adapter_modules(names)):
        a, b = (tuple(opened.get_slice(names[f"{layer}.lora_{half}.weight"]).get_shape()) for half in "AB")
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise UnsupportedAdapter(f"{layer} has lora_A {list(a)} and lora_B {list(b)}, which are no linear layer's")
        shapes[layer] = (a[1], b[0], a[0])
    return shapes


def _alpha(settings: Mapping[str, Any], alphas: set[float], rank: int) -> float:
    """Alpha of the layers with a rank: from the settings, else the tensors `.alpha`, else the rank, as in diffusers."""
    if settings:
        if settings["r"] != rank:
            raise UnsupportedAdapter(f"its settings have r={settings['r']}, and its tensors the rank {rank}")
        return float(settings.get("lora_alpha") or rank)
    if len(alphas) > 1:
        raise UnsupportedAdapter(f"its layers have several alphas: {sorted(alphas)}")
    return next(iter(alphas), float(rank))
