"""`WeightReceiver`: what the engine's workers of both kinds of model do alike in a weight update."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch

from verl_omni.weight_sync import transfer
from verl_omni.weight_sync.names import make_update_zmq_handle
from verl_omni.weight_sync.staging import StagedTensors, check_names


class WeightReceiver:
    """Below a worker extension, which says what becomes of an adapter (`_swap`) and of all weights (`_take_full`)."""

    # Of the worker. Without values, because what both have vLLM refuses.
    device: torch.device
    local_rank: int
    model_runner: Any

    _pending_peft_config: dict[str, Any] | None = None
    _base_synced = False

    def set_pending_lora_peft_config(self, peft_config: dict[str, Any]) -> None:
        """Keep a config for the next update, for senders that cannot pass it along."""
        self._pending_peft_config = peft_config

    def _config_of_update(self, given: dict[str, Any] | None) -> dict[str, Any] | None:
        """The config that came with an update, or else the one kept for it; none is kept any longer."""
        config, self._pending_peft_config = given or self._pending_peft_config, None
        return config

    def _take(
        self, config: dict[str, Any] | None, base_sync_done: bool, update_id: str | None, deadline: float
    ) -> dict[str, Any]:
        handle = make_update_zmq_handle(self._get_zmq_handle(), update_id)
        try:
            if config and base_sync_done:
                return self._take_adapter(handle, config, deadline)
            return self._take_full(handle, deadline)
        except BaseException as error:
            # Whoever keeps the error would keep what these functions held: the sender's buffer, and its tensors.
            traceback.clear_frames(error.__traceback__)
            raise

    def _take_adapter(self, handle: str, config: dict[str, Any], deadline: float) -> dict[str, Any]:
        staging = StagedTensors()
        sent, buckets = self._receive(staging.add, handle, deadline)
        check_names(sent, staging.tensors)
        bound = self._swap(staging.tensors, config)
        return {"tensors": len(sent), "buckets": buckets, "lora": True, "bound": bound}

    def _take_full(self, handle: str, deadline: float) -> dict[str, Any]:
        raise NotImplementedError

    def _swap(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        raise NotImplementedError

    def _receive(
        self, consume: Callable[[transfer.Bucket], None], handle: str, deadline: float
    ) -> tuple[list[str], int]:
        """The names that were sent, and in how many buckets."""
        buckets = 0

        def counted(bucket: transfer.Bucket) -> None:
            nonlocal buckets
            consume(bucket)
            buckets += 1

        sent = transfer.receive(counted, handle=handle, device=self.device, deadline=deadline)
        return sent, buckets

    def _get_zmq_handle(self) -> str:
        job, replica = os.environ.get("VERL_RAY_JOB_ID", "0"), os.environ.get("VERL_REPLICA_RANK", "0")
        return f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-{self.local_rank}.sock"
