"""The trainer's end of a weight update: verl's `ServerAdapter` with deadlines and a checked answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import override
from verl.utils.device import get_device_id, get_device_name
from verl.workers.rollout.vllm_rollout import ServerAdapter as VerlServerAdapter

from verl_omni.weight_sync import names, transfer
from verl_omni.weight_sync.errors import IncompleteUpdate, WeightSyncError
from verl_omni.workers.rollout.vllm_rollout.utils import DEADLINE_SECONDS

_sequence = itertools.count()


class ServerAdapter(VerlServerAdapter):  # type: ignore[misc]
    """Lives in the training worker, beside its rollout replica."""

    @override
    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Send weights, wait for every worker's answer, then publish the version.

        Returns:
            The first worker's answer on the rank that owns the server, None on the others.

        Raises:
            WeightSyncError: the update did not take effect everywhere; the version is not published.
            ValueError: `wire_format` is one of verl's that a diffusion engine does not know.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"a diffusion engine takes wire_format='named_tensors', not {wire_format!r}")
        update = names.make_update_zmq_id(global_steps, next(_sequence))
        receiving = await self._execute_method(
            "update_weights_from_ipc", non_block=True,
            kwargs={**kwargs, "use_shm": self.use_shm, "zmq_update_id": update},
        )  # fmt: skip
        device = None if self.use_shm else torch.device(get_device_name(), get_device_id())
        sending = asyncio.to_thread(
            transfer.send,
            weights,
            handle=names.make_update_zmq_handle(self.zmq_handle, update),
            bucket_bytes=self.config.checkpoint_engine.update_weights_bucket_megabytes << 20,
            device=device,
            deadline=DEADLINE_SECONDS,
        )
        sent, answers = await _both(sending, receiving)
        if answers is None:
            return None
        if short := [answer for answer in answers if answer.get("tensors") != sent]:
            raise IncompleteUpdate(f"{sent} tensors were sent, workers report {short}")
        await self.server_handle.clear_kv_cache.remote()
        if global_steps is not None:
            await self.server_handle.set_global_steps.remote(global_steps)
        return answers[0]


async def _both(sending: Any, receiving: Any) -> tuple[int, list[dict[str, Any]] | None]:
    """Wait for both ends, and raise what the receiver says in preference: the sender only hears of it."""
    sent = await asyncio.gather(sending, return_exceptions=True)
    problem = sent[0] if isinstance(sent[0], BaseException) else None
    answers = None
    if receiving is not None:
        try:
            answers = await receiving
        except Exception as error:
            raise WeightSyncError(f"weight update failed in the engine: {error}") from (problem or error)
    if problem is not None:
        raise problem
    return sent[0], answers  # type: ignore[return-value]
