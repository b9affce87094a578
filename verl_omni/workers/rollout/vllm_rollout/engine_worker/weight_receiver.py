"""`WeightReceiver`: the receiving end of a weight update, for diffusion models and language models."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verl_omni.weight_sync import transfer
from verl_omni.weight_sync.errors import WeightSyncError
from verl_omni.weight_sync.names import make_update_zmq_handle
from verl_omni.weight_sync.staging import StagedTensors, check_names


class WeightReceiver:
    """Base of a worker extension, which implements `_swap_adapter` and `_receive_full`."""

    # Attributes of the engine's worker; without values, because vLLM refuses an extension that redefines any.
    device: torch.device
    local_rank: int
    model_runner: Any

    _pending_peft_config: dict[str, Any] | None = None
    _base_synced = False
    _staged_adapter: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None  # tensors and config

    def set_pending_lora_peft_config(self, peft_config: dict[str, Any]) -> None:
        """Treat the next update as an adapter's, for senders that pass no config with an update."""
        self._pending_peft_config = peft_config

    def _adapter_config(self, given: dict[str, Any] | None, base_sync_done: bool) -> dict[str, Any] | None:
        """The adapter's config if the update is one of an adapter, otherwise None. A pending config is used once."""
        pending = self._pending_peft_config
        self._pending_peft_config = None
        if given:
            return given if base_sync_done else None
        return pending

    def commit_adapter(self, global_steps: int | None = None) -> dict[str, Any]:
        """Serve the adapter that the last update has staged (`stage_adapter`).

        Args:
            global_steps: version of the weights, for later samples.

        Returns:
            `bound`: number of modules that the adapter was bound to.

        Raises:
            WeightSyncError: no adapter is staged, or it does not match the engine's model; the old one keeps serving.
        """
        staged = self._staged_adapter
        self._staged_adapter = None
        if staged is None:
            raise WeightSyncError("no adapter is staged: the last weight update failed, or was one of full weights")
        with _release_frames():
            bound = self._swap_adapter(*staged)
        self.note_weights_version(global_steps)
        return {"bound": bound}

    def note_weights_version(self, global_steps: int | None) -> None:
        """Set the version of later samples."""
        raise NotImplementedError

    def _receive_update(
        self,
        config: dict[str, Any] | None,
        update_id: str | None,
        deadline: float,
        global_steps: int | None,
        stage_adapter: bool,
    ) -> dict[str, Any]:
        handle = make_update_zmq_handle(self._get_zmq_handle(), update_id)
        self._staged_adapter = None
        with _release_frames():
            if not config:
                reply = self._receive_full(handle, deadline)
                self.note_weights_version(global_steps)
                return reply
            reply = self._receive_adapter(handle, config, deadline)
        return reply if stage_adapter else reply | self.commit_adapter(global_steps)

    def _receive_adapter(self, handle: str, config: dict[str, Any], deadline: float) -> dict[str, Any]:
        staged = StagedTensors()
        sent, counts = self._receive_buckets(staged.add, handle, deadline)
        check_names(sent, staged.tensors)
        self._staged_adapter = staged.tensors, config
        return {"tensors": len(sent), **counts, "lora": True}

    def _receive_full(self, handle: str, deadline: float) -> dict[str, Any]:
        raise NotImplementedError

    def _swap_adapter(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        raise NotImplementedError

    def _receive_buckets(
        self, consume: Callable[[transfer.Bucket], None], handle: str, deadline: float
    ) -> tuple[list[str], dict[str, int]]:
        """Returns the names that were sent, and the numbers of `buckets` and of `bytes` of the tensors."""
        counts = {"buckets": 0, "bytes": 0}

        def consume_and_count(bucket: transfer.Bucket) -> None:
            size = sum(tensor.nbytes for _, tensor in bucket)
            consume(bucket)
            counts["buckets"] += 1
            counts["bytes"] += size

        sent = transfer.receive(consume_and_count, handle=handle, device=self.device, deadline=deadline)
        return sent, counts

    def _get_zmq_handle(self) -> str:
        job = os.environ.get("VERL_RAY_JOB_ID", "0")
        replica = os.environ.get("VERL_REPLICA_RANK", "0")
        return f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-{self.local_rank}.sock"


@contextmanager
def _release_frames() -> Iterator[None]:
    """The frames of an error refer to the sender's buffer and to tensors, which a stored error would keep alive."""
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
