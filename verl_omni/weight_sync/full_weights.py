"""Full weight updates: buckets are written straight into the serving model, and every name is checked."""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from verl_omni.weight_sync.checks import check_finite
from verl_omni.weight_sync.errors import IncompleteUpdate, summarize_names
from verl_omni.weight_sync.messages import dtype_name
from verl_omni.weight_sync.names import add_lora_wrapper, part_names, replace_parts, strip_lora_wrapper


def fused_module_parts(module: nn.Module) -> dict[str, list[str]]:
    """Fused modules of a model and their parts, from the table with which the model loads checkpoints.

    vLLM-Omni's models have `stacked_params_mapping`, rows of (`.to_qkv`, `.to_q`, shard).
    """
    parts_of: dict[str, list[str]] = {}
    for submodule in module.modules():
        for row in getattr(submodule, "stacked_params_mapping", None) or ():
            fused, part = (str(word).strip(".") for word in row[:2])
            parts = parts_of.setdefault(fused, [])
            if part not in parts:
                parts.append(part)
    return parts_of


class FullUpdate:
    """One update of all weights of the components that it contains.

    `load` consumes a bucket at once: the pipeline copies it into its parameters. Nothing is staged, so the update needs
    no memory besides the model and the transfer's buffer.

    Args:
        pipeline: has the components as attributes, and `load_weights(pairs) -> names loaded`. The optional
            `checkpoint_names` are pairs (part of a parameter's name in the pipeline, the same part in checkpoints).

    Attributes:
        started: whether weights may have been written.
        casts: number of tensors that were sent in another dtype than the engine's, by `"<sent> to <engine's>"`. Tensors
            leave the trainer in `rollout.dtype`, so these are parameters that the engine keeps in a dtype of their own.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._known: dict[str, str] = {}  # sent name -> the pipeline's own name
        self._required: dict[str, set[str]] = {}  # own name of a parameter -> sent names that cover it together
        self._seen: set[str] = set()
        self._components: set[str] = set()
        self.started = False
        self.casts: collections.Counter[str] = collections.Counter()
        self._dtypes: dict[str, torch.dtype] = {}  # own name -> dtype

    def load(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Check a bucket, then write it.

        Raises:
            IncompleteUpdate: a name is unknown or arrived twice or a value is not finite (and nothing of the bucket was
                written), or the pipeline ignored a weight.
        """
        accepted = [self._accept(name, tensor) for name, tensor in bucket]
        if not accepted:
            return
        self.started = True
        loaded = set(self._pipeline.load_weights(iter([(name, tensor) for _, name, tensor in accepted])))
        # A loader may report only the parts of a fused parameter that are in this bucket.
        if ignored := [sent for sent, name, _ in accepted if name not in loaded and self._parameter(sent) - loaded]:
            raise IncompleteUpdate(f"the pipeline ignored {summarize_names(ignored)}")

    def finish(self) -> int:
        """Check that every parameter of the updated components was written. Returns their number.

        Raises:
            IncompleteUpdate: some were not, or there were no weights.
        """
        if not self._seen:
            raise IncompleteUpdate("the update has no weights")
        missing = [name for name, parts in self._required.items() if not parts <= self._seen]
        if missing:
            raise IncompleteUpdate(f"parameters were not sent, or only in part: {summarize_names(missing)}")
        return len(self._required)

    def _accept(self, sent: str, tensor: Tensor) -> tuple[str, str, Tensor]:
        """Check one tensor. Returns (sent name without wrapper, name for the pipeline's loader, tensor)."""
        name = strip_lora_wrapper(sent)
        component = name.partition(".")[0]
        if component not in self._components:
            self._register(component)
        if name not in self._known:
            raise IncompleteUpdate(f"{sent} is not a weight of the engine's {type(self._pipeline).__name__}")
        if name in self._seen:
            raise IncompleteUpdate(f"{sent} arrived twice")
        check_finite(sent, tensor)
        self._seen.add(name)
        parameter = self._known[name]
        if (dtype := self._dtypes.get(parameter, tensor.dtype)) != tensor.dtype:
            self.casts[f"{dtype_name(tensor.dtype)} to {dtype_name(dtype)}"] += 1
        return name, add_lora_wrapper(name) if parameter != strip_lora_wrapper(parameter) else name, tensor

    def _register(self, component: str) -> None:
        module = getattr(self._pipeline, component, None)
        self._components.add(component)
        if not isinstance(module, nn.Module):
            return
        self._dtypes |= {
            f"{component}.{name}": tensor.dtype for name, tensor in module.state_dict(keep_vars=True).items()
        }
        fused = fused_module_parts(module)
        table = getattr(self._pipeline, "checkpoint_names", ())
        for name in _named(component, module.named_buffers()):
            self._known[strip_lora_wrapper(name)] = name
        for name in _named(component, module.named_parameters()):
            self._require(name, [replace_parts(part, table) for part in part_names(strip_lora_wrapper(name), fused)])

    def _require(self, own: str, parts: Iterable[str]) -> None:
        """Require a parameter, which the sent names `parts` cover together."""
        self._required[own] = set(parts)
        self._known.update(dict.fromkeys(parts, own))

    def _parameter(self, sent: str) -> set[str]:
        """The parameter of a sent name; empty for a buffer, which loaders may not report."""
        return {self._known[sent]} & self._required.keys()


class LanguageModelUpdate(FullUpdate):
    """One update of all weights of a language model of vLLM, which accepts the names of its checkpoints.

    Args:
        model: its optional `packed_modules_mapping` lists fused modules and their parts.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        fused = getattr(model, "packed_modules_mapping", None) or {}
        once = [name for name, _ in model.named_parameters()]
        for name in map(strip_lora_wrapper, once):
            self._require(name, part_names(name, fused))
        # Senders may send a parameter that two modules share, such as tied embeddings, under either name.
        everywhere = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        self._shared = {strip_lora_wrapper(name) for name in everywhere} - self._known.keys() - self._required.keys()

    @override
    def load(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        super().load([(name, tensor) for name, tensor in bucket if strip_lora_wrapper(name) not in self._shared])

    @override
    def _register(self, component: str) -> None:
        """The constructor registers everything."""


def _named(component: str, pairs: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{component}.{name}" for name, _ in pairs]
