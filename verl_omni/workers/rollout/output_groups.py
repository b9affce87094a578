"""Samples of a rollout server that finish at about the same time, and cross the process border together."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from verl_omni.utils.packed_tensors import PackedTensors, pack
from verl_omni.utils.root_cause import sendable
from verl_omni.workers.rollout.replica import DiffusionOutput

# The outputs of an engine's batch arrive one after the other. A group ends when none arrived for so long.
QUIET_SECONDS = 0.01
FIELD = "extra_fields."  # begins the packed names of tensors among the extra fields

Numbered = tuple[int, Any]  # number of a request in its call, and its output, or the exception that it raised


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Outputs of some requests of a call, as they are sent: all tensors in one buffer."""

    numbers: list[int]
    """Number of each request in the call."""
    tensors: PackedTensors
    """The tensors of each output; none for those that are sent whole."""
    others: list[Any]
    """Each output's fields that are no tensors, as a dict; or the output itself, if it is no `DiffusionOutput`."""

    @classmethod
    def of(cls, outputs: Sequence[Numbered]) -> Self:
        """Pack outputs."""
        divided = [_divided(output) for _, output in outputs]
        return cls(
            [number for number, _ in outputs], pack([tensors for tensors, _ in divided]), [o for _, o in divided]
        )

    def outputs(self) -> list[Numbered]:
        """The outputs; large tensors that are the same are one tensor."""
        joined = [_joined(*parts) for parts in zip(self.tensors.rows(), self.others, strict=True)]
        return list(zip(self.numbers, joined, strict=True))


def _divided(output: Any) -> tuple[dict[str, Tensor], Any]:
    if not isinstance(output, DiffusionOutput):
        return {}, output
    fields = {name: getattr(output, name) for name in DiffusionOutput.model_fields if name != "extra_fields"}
    fields |= {FIELD + name: value for name, value in output.extra_fields.items()}
    tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in fields.items() if name not in tensors}


def _joined(tensors: dict[str, Tensor], others: Any) -> Any:
    if not isinstance(others, dict):
        return others
    fields = {**others, **tensors}
    extra = {name.removeprefix(FIELD): fields.pop(name) for name in list(fields) if name.startswith(FIELD)}
    return DiffusionOutput(**fields, extra_fields=extra)


async def in_groups(calls: Sequence[Coroutine[Any, Any, Any]]) -> AsyncIterator[list[Numbered]]:
    """Run calls at the same time, and yield those that have ended, until all have.

    The calls that still run when the iterator is closed are cancelled.
    """
    ended: list[Numbered] = []
    some_ended = asyncio.Event()

    async def run(number: int, call: Coroutine[Any, Any, Any]) -> None:
        try:
            output = await call
        except Exception as error:  # noqa: BLE001  sent to the caller
            output = sendable(error)
        ended.append((number, output))
        some_ended.set()

    tasks = [asyncio.ensure_future(run(number, call)) for number, call in enumerate(calls)]
    left = len(tasks)
    try:
        while left:
            await some_ended.wait()
            count = 0
            while count < len(ended) < left:
                count = len(ended)
                await asyncio.sleep(QUIET_SECONDS)
            group, ended[:] = sorted(ended, key=lambda each: each[0]), []
            some_ended.clear()
            left -= len(group)
            yield group
    finally:
        for task in tasks:
            task.cancel()
