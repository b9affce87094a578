"""Sharded start: build the model without memory, shard it, and let each rank read its own shards from the files."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from verl_omni.weight_sync.names import strip_lora_wrapper
from verl_omni.workers.actor import build, parallel
from verl_omni.workers.actor.precision import Precision
from verl_omni.workers.actor.tensor_files import FILE, INDEX, TensorFiles

logger = logging.getLogger(__name__)


def load_sharded(
    model: Any,
    mesh: DeviceMesh,
    *,
    precision: Precision,
    seed: int,
    component: str = "transformer",
    reshard_after_forward: bool,
    forward_prefetch: bool = False,
    before_sharding: Callable[[nn.Module], None] = lambda _: None,
    open_files: Callable[[Path], TensorFiles] = TensorFiles,
) -> nn.Module:
    """The trained model, sharded over `mesh`, on its device, as after `build.load_transformer` and `parallelize`.

    Each rank reads only its shards, but reads in full the buffers and the parameters that the model keeps in float32.
    Its CPU memory holds one slice at a time, the buffers, and the new adapter until it is sharded.

    Args:
        model: `DiffusionModelConfig`.
        component: folder of the transformer in the model's folder.
        before_sharding: changes the model, with its adapter, before it is sharded; its weights may be on `meta`.
        open_files: opens the files of the folder that it gets.

    Raises:
        ValueError: a tensor of the model is missing in the files, or has another shape; also as `load_transformer`.
        ImportError: as `load_transformer`.
    """

    def shard(module: nn.Module) -> nn.Module:
        before_sharding(module)
        parallel.parallelize(
            module,
            mesh,
            model.fsdp_layer_prefixes,
            precision,
            reshard_after_forward=reshard_after_forward,
            forward_prefetch=forward_prefetch,
        )
        return module

    folder = Path(model.path) / component
    if (reason := _why_whole(folder)) is not None:
        logger.warning("every rank loads the whole transformer into host memory before it is sharded: %s", reason)
        return shard(build.load_transformer(model, precision=precision, seed=seed, component=component).eval())
    transformer = without_memory(folder, precision.frozen)
    with open_files(folder) as files:
        files.check({name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()})
        for name, owner, attribute in _persistent_buffers(transformer):
            owner._buffers[attribute] = files.read(name).to(owner._buffers[attribute].dtype)  # type: ignore[union-attr]
        with _placeholders(transformer):
            build.prepare(transformer, model, precision=precision, seed=seed, component=component)
        from_files = {name for name, parameter in transformer.named_parameters() if parameter.is_meta}
        _allocate(shard(transformer.eval()), parallel.device_of(mesh))
        _fill(transformer, from_files, files)
        logger.info("read %.2f GiB of %s", files.bytes_read / 2**30, files.folder)
    return transformer


def _why_whole(folder: Path) -> str | None:
    """Why the model cannot be read in slices; None if it can."""
    if not (folder / INDEX).is_file() and not (folder / FILE).is_file():
        return f"{folder} has no safetensors files"
    if not can_be_made(folder):
        return f"{folder} has a class or a quantization that only diffusers' own loader supports"
    return None


def can_be_made(folder: Path) -> bool:
    """Whether the transformer can be made from its configuration: without quantization, and of diffusers' own class."""
    import diffusers

    config = json.loads((folder / "config.json").read_text())
    return hasattr(diffusers, str(config.get("_class_name"))) and not config.get("quantization_config")


def without_memory(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The transformer with its parameters on the meta device, in the dtypes in which `from_pretrained` loads them.

    Tensors that no file has are real: the model computes them when it is made. If there are none, its buffers are on
    the meta device too: the position embeddings of SD3 would be computed in four times their memory.
    """
    import diffusers
    from accelerate import init_empty_weights

    config = json.loads((folder / "config.json").read_text())
    kind: Any = getattr(diffusers, config["_class_name"])
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # as `from_pretrained` does: it decides the dtype of some buffers
    try:
        with torch.device("meta"):
            module: nn.Module = kind.from_config(config)
        if _computes_tensors(module):
            with init_empty_weights(include_buffers=False):
                module = kind.from_config(config)
    finally:
        torch.set_default_dtype(before)
    build.cast(module, dtype, frozenset(kind._keep_in_fp32_modules or ()))
    return module


def _computes_tensors(module: nn.Module) -> bool:
    """Whether a module has tensors that are neither parameters nor buffers of its files."""
    return any(
        part._non_persistent_buffers_set
        or any(_has_tensor(value) for name, value in vars(part).items() if name[0] != "_")
        for part in module.modules()
    )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(map(_has_tensor, value)))


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """(name in the files, module that owns it, its name there) of the buffers that the files have."""
    for prefix, part in module.named_modules():
        for attribute, buffer in part._buffers.items():
            if buffer is not None and attribute not in part._non_persistent_buffers_set:
                yield f"{prefix}.{attribute}" if prefix else attribute, part, attribute


@contextmanager
def _placeholders(module: nn.Module) -> Iterator[None]:
    """Put CPU tensors of one element, expanded to their shapes, in the place of the parameters on the meta device.

    peft moves a new adapter to the device of the layer that it adapts: on the meta device it would lose its values.
    """
    placeholders: set[int] = set()
    for part in module.modules():
        for attribute, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                empty = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                part._parameters[attribute] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                placeholders.add(id(part._parameters[attribute]))
    yield
    for part in module.modules():
        for attribute, parameter in part._parameters.items():
            if parameter is not None and id(parameter) in placeholders:
                meta = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                part._parameters[attribute] = nn.Parameter(meta, requires_grad=parameter.requires_grad)


def _allocate(module: nn.Module, device: torch.device) -> None:
    """Give this rank's shards of the parameters on the meta device memory on `device`; their values are undefined."""
    # `to_empty` would do so for all tensors, and lose the adapter and the buffers. FSDP2 notices it in `_apply`.
    module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


@torch.no_grad()
def _fill(module: nn.Module, names: set[str], files: TensorFiles) -> None:
    for name, parameter in module.named_parameters():
        if name not in names:
            continue
        stored = strip_lora_wrapper(name)
        if isinstance(parameter, DTensor):
            local = parameter.detach().to_local()
            part = own_part(parameter)
        else:
            local = parameter.detach()
            part = ()
        if local.numel() > 0:
            local.copy_(files.read(stored, part).to(local.dtype))


def own_part(tensor: DTensor) -> tuple[slice, ...]:
    """Where in the whole tensor this rank's shard lies: FSDP2 splits a dimension as `torch.chunk` does."""
    part = [slice(0, size) for size in tensor.shape]
    for number, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            size = tensor.shape[placement.dim]
            ranks = tensor.device_mesh.size(number)
            part[placement.dim] = chunk(size, ranks, tensor.device_mesh.get_local_rank(number))
    return tuple(part)


def chunk(size: int, ranks: int, place: int) -> slice:
    """The part of `size` elements that one of `ranks` gets: all get the same number, rounded up, and the last the rest.

    Empty for ranks behind the end.
    """
    per_rank = -(-size // ranks)
    return slice(min(place * per_rank, size), min((place + 1) * per_rank, size))
