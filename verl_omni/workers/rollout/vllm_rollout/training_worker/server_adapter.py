"""`ServerAdapter`: the sending end of a weight update, with deadlines and checked replies."""

import asyncio
import itertools
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import torch
from typing_extensions import override
from verl.utils.device import get_device_id, get_device_name
from verl.workers.rollout.vllm_rollout import ServerAdapter as VerlServerAdapter

from verl_omni.weight_sync import ipc, names
from verl_omni.weight_sync.errors import (
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    PeerFailed,
    TransferCancelled,
    WeightSyncError,
    parse_error,
)
from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed, await_reply

_sequence = itertools.count()


class ServerAdapter(VerlServerAdapter):
    """verl's adapter in the training worker for the replica that shares its accelerator.

    Either end waits at most `rollout.checkpoint_engine.engine_kwargs.naive.deadline_seconds` for the other.
    """

    @override
    async def resume(self, tags: list[str]) -> None:
        """Wake the replica if it sleeps between updates. Raises `WeightSyncError` if it does not wake up."""
        if self.config.free_cache_engine and self._ensure_server_handle():
            await self._await_reply(self.server_handle.wake_up.remote(tags=tags), f"wake_up {' and '.join(tags)}")

    @override
    async def release(self) -> None:
        """Put the replica to sleep if it sleeps between updates. Raises `WeightSyncError` if it does not."""
        if self.config.free_cache_engine and self._ensure_server_handle():
            await self._await_reply(self.server_handle.sleep.remote(), "sleep")

    @override
    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Send weights, wait for every worker's reply, then publish the version.

        Args:
            weights: read one at a time in another thread, while this thread waits for the workers.
            kwargs: `peft_config` and `base_sync_done` for an adapter.

        Returns:
            The first worker's reply on the rank that owns the server, None on other ranks.

        Raises:
            WeightSyncError: the update did not take effect everywhere; the version is not published.
            ValueError: a `wire_format` of verl that the engine does not support.
            Any error raised by iterating `weights`.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"unsupported wire_format={wire_format!r}: use 'named_tensors'")
        deadline = self._deadline()
        update = self._update_id(global_steps)
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

        def send(stop: ipc.StopSignal) -> int:
            with torch.no_grad():  # grad mode is thread-local
                return ipc.send(
                    weights,
                    handle=names.make_update_zmq_handle(self.zmq_handle, update),
                    bucket_bytes=self.config.checkpoint_engine.update_weights_bucket_megabytes << 20,
                    device=device,
                    deadline=deadline,
                    stop=stop,
                )

        sent, replies = await run_update(send, receiving, deadline)
        if not self._has_server:
            return None
        reply = check_confirmations(sent, replies)
        await self._await_reply(self.server_handle.clear_kv_cache.remote(), "clear_kv_cache")
        if global_steps is not None:
            await self._await_reply(self.server_handle.set_global_steps.remote(global_steps), "set_global_steps")
        return reply

    async def _await_reply(self, reply: Awaitable[Any], call: str) -> Any:
        try:
            return await await_reply(reply, replica=self.replica_rank, call=call, deadline=self._deadline())
        except ReplicaCallFailed as error:
            raise WeightSyncError(str(error)) from error

    def _deadline(self) -> float:
        options = self.config.checkpoint_engine.engine_kwargs.get("naive") or {}
        return float(options.get("deadline_seconds", ipc.UPDATE_DEADLINE_SECONDS))

    def _update_id(self, global_steps: int | None) -> str:
        """Id of this update: equal on all ranks of a job, unique on this machine.

        Each Ray cluster numbers its jobs from one, so the job id in verl's handle is the same in two clusters, and one
        of them could receive the weights of the other.
        """
        import ray

        cluster = zlib.crc32(ray.get_runtime_context().gcs_address.encode())
        return f"{names.make_update_zmq_id(global_steps, next(_sequence))}-{cluster:08x}"


async def run_update(
    send: Callable[[ipc.StopSignal], int], receiving: Awaitable[Any] | None, deadline: float
) -> tuple[int, Any]:
    """Run the sender in a thread while the workers receive. Returns the number of sent tensors and the replies.

    If both fail, the cause is raised: an error of the trainer itself, otherwise the error of the worker.

    Args:
        send: sends until done, or until its argument is set.
        receiving: the workers' replies; None on a rank that does not call the workers.
        deadline: seconds for the workers to reply after the transfer.
    """
    with ipc.StopSignal() as stop:
        sender = asyncio.ensure_future(asyncio.to_thread(send, stop))
        replies = None if receiving is None else asyncio.ensure_future(_await(receiving))
        try:
            if replies is not None:
                await asyncio.wait({sender, replies}, return_when=asyncio.FIRST_COMPLETED)
                if replies.done() and replies.exception() is not None:
                    stop.set()  # no worker receives the weights any more
            await asyncio.wait({sender})
            if replies is not None:
                await asyncio.wait({replies}, timeout=deadline)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({sender})
            raise
        return _result(sender, replies, deadline)


def _result(sender: asyncio.Future[int], replies: asyncio.Future[Any] | None, deadline: float) -> tuple[int, Any]:
    error = sender.exception()
    if error is not None and not isinstance(error, (PeerFailed, PeerDisconnected, DeadlineExceeded, TransferCancelled)):
        raise error
    if replies is None:
        return sender.result(), None
    if not replies.done():
        replies.cancel()
        raise error or DeadlineExceeded(f"the workers received the weights, but did not reply within {deadline:g} s")
    failure = replies.exception()
    if failure is not None:
        raise parse_error(str(failure)) from failure
    return sender.result(), replies.result()


async def _await(receiving: Awaitable[Any]) -> Any:
    return await receiving


def check_confirmations(sent: int, replies: Any) -> dict[str, Any]:
    """Check that every worker received and applied all tensors. Returns the first worker's reply.

    Raises:
        IncompleteUpdate: a worker did not, or there are no replies (verl's own server discards them).
    """
    if not replies:
        raise IncompleteUpdate(f"{sent} tensors were sent, but no worker confirmed them")
    if short := [reply for reply in replies if not isinstance(reply, dict) or reply.get("tensors") != sent]:
        raise IncompleteUpdate(f"{sent} tensors were sent, but workers report {short}")
    if unused := [reply for reply in replies if not reply.get("bound")]:
        raise IncompleteUpdate(f"workers received the weights, but applied them to no module: {unused}")
    return replies[0]
