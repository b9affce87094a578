"""The trainer's end of a weight update: verl's `ServerAdapter` with deadlines and a checked answer."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Awaitable, Iterable
from typing import Any

import torch
from typing_extensions import override
from verl.utils.device import get_device_id, get_device_name
from verl.workers.rollout.vllm_rollout import ServerAdapter as VerlServerAdapter

from verl_omni.weight_sync import names, transfer
from verl_omni.weight_sync.errors import WeightSyncError
from verl_omni.weight_sync.update_run import check_confirmations, run_update
from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed, await_reply

_sequence = itertools.count()


class ServerAdapter(VerlServerAdapter):
    """Lives in the training worker, beside its rollout replica.

    `rollout.checkpoint_engine.engine_kwargs.naive.deadline_seconds` is how long either end waits for the other.
    """

    @override
    async def resume(self, tags: list[str]) -> None:
        """Wake the replica where it sleeps between updates; `WeightSyncError` where it does not."""
        if self.config.free_cache_engine and self._ensure_server_handle():
            await self._await_reply(self.server_handle.wake_up.remote(tags=tags), f"waking {' and '.join(tags)}")

    @override
    async def release(self) -> None:
        """Let the replica sleep; `WeightSyncError` where it does not."""
        if self.config.free_cache_engine and self._ensure_server_handle():
            await self._await_reply(self.server_handle.sleep.remote(), "falling asleep")

    @override
    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Send weights, wait for every worker's answer, then publish the version.

        Args:
            weights: taken one at a time, in another thread, while this one waits for the workers.
            kwargs: `peft_config` and `base_sync_done` for an adapter.

        Returns:
            The first worker's answer on the rank that owns the server, None on the others.

        Raises:
            WeightSyncError: the update did not take effect everywhere; the version is not published.
            ValueError: `wire_format` is one of verl's that a diffusion engine does not know.
            whatever iterating `weights` raises.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"a diffusion engine takes wire_format='named_tensors', not {wire_format!r}")
        deadline, update = self._deadline(), self._update_id(global_steps)
        receiving = await self._execute_method(
            "update_weights_from_ipc",
            non_block=True,
            kwargs={
                **kwargs,
                "use_shm": self.use_shm,
                "zmq_update_id": update,
                "deadline": deadline,
                "global_steps": global_steps,
            },
        )
        device = None if self.use_shm else torch.device(get_device_name(), get_device_id())

        def sending(stop: transfer.StopSignal) -> int:
            with torch.no_grad():  # grad mode belongs to a thread
                return transfer.send(
                    weights,
                    handle=names.make_update_zmq_handle(self.zmq_handle, update),
                    bucket_bytes=self.config.checkpoint_engine.update_weights_bucket_megabytes << 20,
                    device=device,
                    deadline=deadline,
                    stop=stop,
                )

        sent, answers = await run_update(sending, receiving, deadline)
        if not self._has_server:
            return None
        answer = check_confirmations(sent, answers)
        await self._await_reply(self.server_handle.clear_kv_cache.remote(), "clearing its cache")
        if global_steps is not None:
            await self._await_reply(self.server_handle.set_global_steps.remote(global_steps), "publishing the version")
        return answer

    async def _await_reply(self, reply: Awaitable[Any], call: str) -> Any:
        try:
            return await await_reply(reply, replica=self.replica_rank, call=call, deadline=self._deadline())
        except ReplicaCallFailed as error:
            raise WeightSyncError(str(error)) from error

    def _deadline(self) -> float:
        options = self.config.checkpoint_engine.engine_kwargs.get("naive") or {}
        return float(options.get("deadline_seconds", transfer.UPDATE_DEADLINE_SECONDS))

    def _update_id(self, global_steps: int | None) -> str:
        """The same on all ranks of a job, and no other job's on this host.

        Each Ray cluster numbers its jobs from one, so the job in verl's handle does not tell two clusters apart, and
        one could take the other's weights.
        """
        import ray

        cluster = zlib.crc32(ray.get_runtime_context().gcs_address.encode())
        return f"{names.make_update_zmq_id(global_steps, next(_sequence))}-{cluster:08x}"
