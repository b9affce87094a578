"""Full weights into a pipeline that serves, bucket by bucket: which names may come, and which must."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.names import replaced, unpacked, unwrapped, wrapped
from verl_omni.weight_sync.staging import check_finite, few


def packed_parts(module: nn.Module) -> dict[str, list[str]]:
    """Fused modules of a model and their parts, from the table by which it loads its own checkpoints.

    vLLM-Omni's models keep `stacked_params_mapping`, rows of (`.to_qkv`, `.to_q`, shard).
    """
    found: dict[str, list[str]] = {}
    for each in module.modules():
        for row in getattr(each, "stacked_params_mapping", None) or ():
            fused, part = (str(word).strip(".") for word in row[:2])
            parts = found.setdefault(fused, [])
            if part not in parts:
                parts.append(part)
    return found


class FullUpdate:
    """One update of all weights of the components that it touches.

    `load` consumes a bucket at once: the pipeline copies it into its parameters, so nothing is staged, and the
    memory used beside the model is the transfer's buffer.

    Args:
        pipeline: has the components as attributes, and `load_weights(pairs) -> names loaded`. `checkpoint_names`,
            if it has them, are pairs (part of its own names, what checkpoints call it).
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._known: dict[str, str] = {}  # name as sent -> the pipeline's own name
        self._needed: dict[str, set[str]] = {}  # own name of a parameter -> names that cover it together
        self._seen: set[str] = set()
        self._components: set[str] = set()
        self.begun = False

    def load(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Check a bucket, then write it.

        Raises:
            IncompleteUpdate: a name is unknown or came twice, a value is not finite (nothing of the bucket was
                written), or the pipeline passed over a weight.
        """
        accepted = [self._accept(name, tensor) for name, tensor in bucket]
        if not accepted:
            return
        self.begun = True
        loaded = set(self._pipeline.load_weights(iter([(name, tensor) for _, name, tensor in accepted])))
        if ignored := [sent for sent, _, _ in accepted if self._parameter(sent) - loaded]:
            raise IncompleteUpdate(f"the pipeline passed over {few(ignored)}")

    def finish(self) -> int:
        """Check that every parameter of the touched components was written. Returns how many there are.

        Raises:
            IncompleteUpdate: some were not, or there was no weight at all.
        """
        if not self._seen:
            raise IncompleteUpdate("the update has no weights")
        missing = [name for name, parts in self._needed.items() if not parts <= self._seen]
        if missing:
            raise IncompleteUpdate(f"parameters that were not sent, or only in part: {few(missing)}")
        return len(self._needed)

    def _accept(self, sent: str, tensor: Tensor) -> tuple[str, str, Tensor]:
        """(name as sent, name for the pipeline's loader, tensor)."""
        name = unwrapped(sent)
        component = name.partition(".")[0]
        if component not in self._components:
            self._learn(component)
        if name not in self._known:
            raise IncompleteUpdate(f"{sent} is no weight of the engine's {type(self._pipeline).__name__}")
        if name in self._seen:
            raise IncompleteUpdate(f"{sent} arrived twice")
        check_finite(sent, tensor)
        self._seen.add(name)
        own = self._known[name]
        return name, wrapped(name) if own != unwrapped(own) else name, tensor

    def _learn(self, component: str) -> None:
        module = getattr(self._pipeline, component, None)
        self._components.add(component)
        if not isinstance(module, nn.Module):
            return
        packed, table = packed_parts(module), getattr(self._pipeline, "checkpoint_names", ())
        for own in _named(component, module.named_buffers()):
            self._known[unwrapped(own)] = own
        for own in _named(component, module.named_parameters()):
            self._need(own, [replaced(part, table) for part in unpacked(unwrapped(own), packed)])

    def _need(self, own: str, parts: Iterable[str]) -> None:
        """A parameter, and the names that cover it together."""
        self._needed[own] = set(parts)
        self._known.update(dict.fromkeys(parts, own))

    def _parameter(self, sent: str) -> set[str]:
        """The parameter that a sent name is for; empty for a buffer, which loaders may not report."""
        return {self._known[sent]} & self._needed.keys()


class LanguageUpdate(FullUpdate):
    """One update of all weights of a language model of vLLM, which takes the names of its checkpoints.

    Args:
        model: `packed_modules_mapping`, if it has it, names fused modules and their parts.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        packed = getattr(model, "packed_modules_mapping", None) or {}
        once = [name for name, _ in model.named_parameters()]
        for name in map(unwrapped, once):
            self._need(name, unpacked(name, packed))
        # Senders may name a parameter that two modules share, such as tied embeddings, at either place.
        everywhere = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        self._shared = {unwrapped(name) for name in everywhere} - self._known.keys() - self._needed.keys()

    @override
    def load(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        super().load([(name, tensor) for name, tensor in bucket if unwrapped(name) not in self._shared])

    @override
    def _learn(self, component: str) -> None:
        """Everything is known from the beginning."""


def _named(component: str, pairs: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{component}.{name}" for name, _ in pairs]
