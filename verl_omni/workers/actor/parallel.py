"""Parallelisation of the trained model: mixed precision and sharding with FSDP2."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from verl_omni.workers.actor.precision import Precision, float32_parts
from verl_omni.workers.actor.setting_checks import check_fsdp_size, shards
from verl_omni.workers.config import DiffusionFSDPConfig

GRAPHS = 64  # compiled graphs per layer class; torch's limit of 8 assumes that recompilation is a mistake


def parallelize(
    module: nn.Module,
    mesh: DeviceMesh,
    prefixes: Sequence[str],
    precision: Precision,
    *,
    reshard_after_forward: bool,
    forward_prefetch: bool = False,
) -> None:
    """Shard with FSDP2: each layer named `<prefix><index>` for itself, then the rest of the module.

    Each layer sees its weights in `precision.compute` while it runs, as a model loaded in that dtype would; in memory
    they keep their own. Inputs are not cast, so that each module gets the dtypes that its model gives it.

    What the model keeps in float32 is computed in float32. If it is frozen, every rank keeps all of it. If it is
    trained, its modules are sharded for themselves; only parameters that a layer owns directly, such as Wan's
    `scale_shift_table`, reach that layer in `precision.compute`.

    With `forward_prefetch`, a layer's forward pass starts to gather the next layer before it computes.
    """
    parts = set(float32_parts(module)) if precision.compute != torch.float32 else set()
    frozen = {p for name, p in module.named_parameters() if name in parts and not p.requires_grad}
    for parameter in frozen:
        if not parameter.is_meta:  # `shard_loading` allocates those on the device
            parameter.data = parameter.data.to(device_of(mesh))

    def wrap(part: nn.Module, dtype: torch.dtype) -> None:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=precision.reduce, cast_forward_inputs=False)
        fully_shard(
            part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward, ignored_params=frozen
        )

    module.register_forward_hook(_copy_views)
    for name in _trained_modules(module, parts):
        wrap(module.get_submodule(name), torch.float32)
    for name in layer_names(module, prefixes):
        module.get_submodule(name).register_forward_hook(_copy_views)
        wrap(module.get_submodule(name), precision.compute)
    wrap(module, precision.compute)
    if forward_prefetch:
        layers: list[Any] = [module.get_submodule(name) for name in layer_names(module, prefixes)]
        for layer, following in pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])


def _copy_views(module: nn.Module, arguments: Any, found: Any) -> Any:
    """Forward hook, called before FSDP2's own, which warns about a module that returns a view."""
    if isinstance(found, torch.Tensor):
        return found.clone() if found._is_view() else found
    return tuple(_copy_views(module, arguments, item) for item in found) if isinstance(found, tuple) else found


def compile_layers(module: Any, prefixes: Sequence[str], backend: str = "inductor") -> None:
    """Compile the forward pass of each layer with `torch.compile`, when it first runs; call it before `parallelize`.

    Layers of a class share graphs: one for each kind of layer, each shape, and passes without gradients or adapter.
    A layer that cannot become a single graph raises an error. Activation checkpointing moves into the graphs, because
    diffusers' own calls a layer once more in the backward pass, and torch may choose another graph for that call.

    Args:
        module: a diffusers model.
        backend: torch's name of the compiler.
    """
    checkpointing = module.is_gradient_checkpointing
    if checkpointing:
        module.disable_gradient_checkpointing()
    compiled: dict[type[nn.Module], Any] = {}
    for name in layer_names(module, prefixes):
        layer = module.get_submodule(name)
        kind = type(layer)
        if kind not in compiled:
            compiled[kind] = torch.compile(
                _checkpointed(kind.forward) if checkpointing else kind.forward,
                backend=backend,
                fullgraph=True,
                isolate_recompiles=True,
                recompile_limit=GRAPHS,
            )
        layer.forward = MethodType(compiled[kind], layer)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **named)

    return run


def layer_names(module: nn.Module, prefixes: Sequence[str]) -> list[str]:
    """Names of the layers, which are `<prefix><index>`."""
    return [name for name, _ in module.named_modules() if _is_layer(name, prefixes)]


def _is_layer(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(prefix) and name.removeprefix(prefix).isdigit() for prefix in prefixes)


def _trained_modules(module: nn.Module, parts: set[str]) -> Iterator[str]:
    """Modules whose parameters are all trained and all among `parts`, without modules inside of them."""
    outer_modules: list[str] = []
    for name, submodule in module.named_modules():
        inside = {f"{name}.{parameter_name}": p for parameter_name, p in submodule.named_parameters()}
        if not inside or any(name.startswith(f"{outer}.") for outer in outer_modules):
            continue
        if all(parameter_name in parts and p.requires_grad for parameter_name, p in inside.items()):
            outer_modules.append(name)
            yield name


def make_mesh(device_type: str, ranks: int, fsdp_size: int) -> DeviceMesh:
    """The device mesh of all ranks: [ranks], or [ranks / fsdp_size, fsdp_size] for copies of a sharded model (HSDP).

    Args:
        fsdp_size: ranks that share one copy of the weights; -1, or more than there are: all.

    Raises:
        ValueError: `fsdp_size` does not divide `ranks`.
    """
    check_fsdp_size(ranks, fsdp_size)
    if shards(ranks, fsdp_size) == ranks:
        return init_device_mesh(device_type, (ranks,), mesh_dim_names=("fsdp",))
    return init_device_mesh(device_type, (ranks // fsdp_size, fsdp_size), mesh_dim_names=("ddp", "fsdp"))


def mesh_of_one(device: torch.device) -> DeviceMesh:
    """A mesh with this process alone, for mixed precision without other ranks."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    return make_mesh(device.type, 1, -1)


def device_of(mesh: DeviceMesh) -> torch.device:
    """The training device of this rank."""
    if mesh.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())


def reduces_each_pass(fsdp: DiffusionFSDPConfig, several_transformers: bool) -> bool:
    """Whether every backward pass of an optimizer step reduces gradients over the ranks, or the last one only.

    With several transformers every pass does, regardless of `use_no_sync_for_gradient_accumulation`: FSDP2 reduces a
    transformer's accumulated gradients only in a backward pass of this transformer, and the last pass may not use it.
    """
    return several_transformers or not fsdp.use_no_sync_for_gradient_accumulation


def require_reduction(module: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass reduces the gradients over the ranks, or only accumulates them on each."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_requires_gradient_sync(wanted, recurse=False)
