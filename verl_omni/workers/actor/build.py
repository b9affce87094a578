"""Model construction: load the transformer, add the LoRA adapter."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from verl_omni.workers.actor import saved_adapter
from verl_omni.workers.actor.precision import Precision, float32_parts

ADAPTER = "default"

logger = logging.getLogger(__name__)


def load_transformer(model: Any, *, precision: Precision, seed: int, component: str = "transformer") -> nn.Module:
    """Load the transformer, with a LoRA adapter when `model.lora_rank` is positive.

    Frozen weights are in `precision.frozen`, except those that the model keeps in float32, and trained weights in
    float32. The adapter is loaded from `model.lora_adapter_path`, or is new; the values of a new one depend on `seed`
    alone, so they are the same on every rank.

    Args:
        model: `DiffusionModelConfig`.
        component: folder of the transformer in the model's folder.

    Raises:
        ValueError: `lora_rank` is positive and `target_modules` is empty, or has a suffix that no layer has, or the
            adapter in the files has other layers or sizes.
        ImportError: the package of `model.attn_backend` is not installed.
    """
    from diffusers import AutoModel

    transformer: nn.Module = AutoModel.from_pretrained(
        str(Path(model.path)), subfolder=component, torch_dtype=precision.frozen
    )
    return prepare(transformer, model, precision=precision, seed=seed, component=component)


def prepare(
    made: nn.Module, model: Any, *, precision: Precision, seed: int, component: str = "transformer"
) -> nn.Module:
    """Make a loaded transformer the trained model: dtypes, checkpointing, attention kernel, adapter, what is trained.

    Arguments and errors: see `load_transformer`.
    """
    if precision.buffers is not None:
        _cast_buffers(made, precision.buffers)
    if model.enable_gradient_checkpointing:
        made.enable_gradient_checkpointing()  # type: ignore[operator]
    if model.attn_backend != "native":  # diffusers' default
        select_attention(made, model.attn_backend)
    if model.lora_rank <= 0:
        made.requires_grad_(True)
        return made
    from peft import LoraConfig

    from verl_omni.workers.actor.lora_linear import use_cheaper_order

    if not model.target_modules:
        raise ValueError("model.lora_rank is positive but model.target_modules is empty")
    made.requires_grad_(False)
    targets = model.target_modules if isinstance(model.target_modules, str) else list(model.target_modules)
    _check_targets(targets, [name for name, _ in made.named_modules()])
    config = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets,
        exclude_modules=model.exclude_modules,
        init_lora_weights=model.lora_init_weights,
    )
    use_cheaper_order(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made.add_adapter(config, adapter_name=ADAPTER)  # type: ignore[operator]
    for parameter in made.parameters():
        if parameter.requires_grad:  # peft gives an adapter the dtype of the layer that it adapts
            parameter.data = parameter.data.float()
    if model.lora_adapter_path is not None:
        _fill_adapter(made, saved_adapter.read(Path(model.lora_adapter_path)).tensors(component))
    return made


def _check_targets(targets: str | Sequence[str], layers: Sequence[str]) -> None:
    """Refuse suffixes that no layer has: peft adapts the layers of the others, and says nothing.

    Raises:
        ValueError: the message has the first such suffix, and the nearest one that exists.
    """
    for target in () if isinstance(targets, str) else targets:
        if not saved_adapter.select_layers([target], layers):
            parts = target.count(".") + 1
            suffixes = {".".join(layer.split(".")[-parts:]) for layer in layers}
            near = difflib.get_close_matches(target, sorted(suffixes), n=1)
            raise ValueError(
                f"actor_rollout_ref.model.target_modules: the transformer has no layer {target}"
                f"{f'; did you mean {near[0]}?' if near else ''}"
            )


@torch.no_grad()
def _fill_adapter(module: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Give the adapter, which is trained, the values of a saved one."""
    adapter = {
        name.replace(f".{ADAPTER}.", "."): parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    expected = {name: tuple(parameter.shape) for name, parameter in adapter.items()}
    if different := dict(expected.items() ^ {name: tuple(value.shape) for name, value in values.items()}.items()):
        raise ValueError(
            f"the adapter of model.lora_adapter_path has other layers than model.target_modules: "
            f"{', '.join(sorted(different)[:5])}; leave lora_rank and target_modules out"
        )
    for name, value in values.items():
        adapter[name].copy_(value)


def cast(module: nn.Module, dtype: torch.dtype, kept: frozenset[str]) -> None:
    """Cast floating-point parameters and persistent buffers to `dtype`, or to float32 if named in `kept`."""
    by_id: dict[int, nn.Parameter] = {}
    for prefix, part in module.named_modules():
        wanted = torch.float32 if kept & {*prefix.split(".")} else dtype
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_floating_point():
                owner = torch.float32 if name in kept else wanted
                if id(parameter) not in by_id:  # tied weights stay tied
                    by_id[id(parameter)] = nn.Parameter(parameter.to(owner), requires_grad=parameter.requires_grad)
                part._parameters[name] = by_id[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in part._non_persistent_buffers_set:
                part._buffers[name] = buffer.to(wanted)


def _cast_buffers(module: nn.Module, dtype: torch.dtype) -> None:
    kept = set(float32_parts(module))
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and name not in kept:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, buffer.to(dtype))


def select_attention(module: Any, backend: str) -> None:
    """Select the attention kernel of a diffusers model, by diffusers' name.

    Raises:
        ImportError: the kernel's package is not installed, or the kernel could not be downloaded.
    """
    try:
        module.set_attention_backend(backend)
    except Exception as error:
        raise ImportError(f"model.attn_backend={backend!r} cannot be used: {error}") from error
    if not any(hasattr(processor, "_attention_backend") for processor in module.attn_processors.values()):
        # A warning, not an error: recipes of verl-omni set a backend for every family.
        logger.warning(
            "model.attn_backend=%r has no effect: %s always uses torch's attention", backend, type(module).__name__
        )


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """The unsharded tensor of a parameter. A collective: every rank must call it in the same order."""
    unsharded = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[attr-defined]
    return unsharded.detach()
