"""Clients of the rollout servers: errors that name the replica, deadlines, samples that are generated again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from ray.exceptions import ObjectLostError, RayActorError
from torch import Tensor
from typing_extensions import override
from verl.workers.rollout.llm_server import LLMServerClient

from verl_omni.utils.root_cause import describe_error
from verl_omni.weight_sync.errors import TooFewReplicas
from verl_omni.workers.config.diffusion.rollout import REPLICA_DEADLINE_SECONDS
from verl_omni.workers.rollout.diffusion_output import DiffusionOutput
from verl_omni.workers.rollout.replica_calls import (
    EngineDead,
    ReplicaCallFailed,
    ReplicaError,
    ReplicaLost,
    await_router,
)

logger = logging.getLogger(__name__)
# what verl's router raises then
NO_SERVER = "No available servers"
SERVER_POLL_SECONDS = 1.0
# How often a sample is retried after its replica was lost; a rolling update may cost it one replica per old pod.
# A sample that crashes its engine would otherwise crash every replica, and the replacements too.
LOSSES_OF_A_SAMPLE = 5
REASONS_SHOWN = 3
MEDIA = ("video_data", "audio_data")
PER_SAMPLE = frozenset({"request_id", "sampling_params", "priority"})  # arguments of `generate` that are no prompt
SEEDS = frozenset({"seed", "sde_noise_seed", "sde_window_seed"})  # no embedding depends on these sampling parameters


class DiffusionLLMServerClient(LLMServerClient):  # type: ignore[misc]
    """verl's client with a deadline, and with errors that name the replica.

    A replica that has requests in flight and sends nothing for `rollout.deadline_seconds` is treated as failed: it may
    be stopped or unreachable, and Ray would wait forever. Each sample from the replica restarts the deadline, so the
    deadline does not depend on the batch size.

    A standalone replica that is lost or silent, or whose engine has ended, is removed from the router, and other
    replicas generate its samples again, with the same seeds. While the router has no replica, requests wait for one to
    join. A sample that loses its replica more than `LOSSES_OF_A_SAMPLE` times fails.

    Args:
        waits: whether a replica with the weight version of these requests may still join.
    """

    def __init__(self, *args: Any, waits: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rollout = self.config.actor_rollout_ref.rollout
        self._deadline = float(getattr(rollout, "deadline_seconds", REPLICA_DEADLINE_SECONDS))
        self._standalone = getattr(rollout, "min_replicas", None) is not None
        self._waits = waits
        self._in_flight: dict[str, tuple[str, float]] = {}  # request -> its replica, and when it was sent
        self._last_reply: dict[str, float] = {}  # replica -> time of its last reply

    @override
    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server_id, server = await self._any_server(request_id, **extra)
        self._in_flight[request_id] = server_id, asyncio.get_running_loop().time()
        return server_id, server

    async def _any_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        """A replica of the router; waits for one to join.

        Raises:
            TooFewReplicas: the router has none, and none can join, or none did within `rollout.deadline_seconds`.
            ReplicaCallFailed: as `await_router`.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._deadline
        while True:
            try:
                acquired: tuple[str, Any] = await await_router(super()._acquire_server(request_id, **extra))
                return acquired
            except RuntimeError as error:  # as Ray raises the router's own
                if not self._standalone or NO_SERVER not in str(error):
                    raise
                if not self._waits or clock() > until:
                    none = f"joined within {self._deadline:g} s (rollout.deadline_seconds)"
                    none = none if self._waits else "has the weights of this batch"
                    raise TooFewReplicas(f"all rollout replicas are lost, and no other one {none}") from error
            await asyncio.sleep(SERVER_POLL_SECONDS)

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        """Generate one sample; arguments as in `vLLMOmniHttpServer.generate`.

        Returns:
            The sample; `extra_fields["prompt_keys"]` has the result of `prompt_keys`, unless it is None.

        Raises:
            ReplicaError: the replica's engine failed, or, on the trainer's accelerators, has ended.
            ReplicaLost: a replica on the trainer's accelerators died, or sent nothing for `rollout.deadline_seconds`.
            TooFewReplicas: all standalone replicas did.
            ReplicaCallFailed: the replica raised another error, or more than `LOSSES_OF_A_SAMPLE` standalone replicas
                were lost with this sample.
        """
        losses: list[ReplicaLost] = []
        while True:
            try:
                return await self._generate_once(request_id, **kwargs)
            except ReplicaLost as lost:
                await self._leave_out(lost)
                losses.append(lost)
                if len(losses) > LOSSES_OF_A_SAMPLE:
                    last = "; ".join(str(each) for each in losses[-REASONS_SHOWN:])
                    raise ReplicaCallFailed(
                        f"{len(losses)} rollout replicas were lost, one after the other, while they generated this "
                        f"sample, and it is sent to no other one; the last of them: {last}"
                    ) from lost

    async def _leave_out(self, lost: ReplicaLost) -> None:
        """Take a lost replica from the router.

        Raises:
            ReplicaLost: the replicas share the trainer's accelerators, and the next weight update needs all of them.
            ReplicaCallFailed: as `await_router`.
        """
        if not self._standalone:
            raise lost
        if lost.replica in await await_router(self._load_balancer.get_all_servers.remote()):
            await await_router(self._load_balancer.remove_servers.remote([lost.replica]))
            logger.warning("%s; it serves no more, and others generate its samples again", lost)

    async def _generate_once(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        try:
            output = await self._with_deadline(request_id, super().generate(request_id, **kwargs))
        except ReplicaLost:
            raise
        except ReplicaError as error:
            # It names the replica already. Ray's wrapper would add the text of the whole traceback.
            own = getattr(error, "cause", error)
            if self._standalone and isinstance(own, EngineDead):
                raise ReplicaLost(self._in_flight[request_id][0], f"its engine has ended: {own.reason}") from error
            raise own from error
        except Exception as error:
            if (sent := self._in_flight.get(request_id)) is None:
                raise  # no replica was acquired
            # An output is lost with the node of the replica that has made it.
            if isinstance(error, (RayActorError, ObjectLostError)):
                raise ReplicaLost(sent[0], describe_error(error)) from error
            # Without Ray's traceback, after which a reader of the last line would miss the replica.
            raise ReplicaCallFailed(f"replica {sent[0]}: {describe_error(error)}") from error
        finally:
            self._in_flight.pop(request_id, None)
        if (keys := prompt_keys(kwargs)) is not None and isinstance(output, DiffusionOutput):
            output.extra_fields["prompt_keys"] = keys
        return output

    async def _with_deadline(self, request_id: str, reply: Coroutine[Any, Any, DiffusionOutput]) -> DiffusionOutput:
        clock = asyncio.get_running_loop().time
        pending = asyncio.ensure_future(reply)
        try:
            while not pending.done():
                # Until a replica is acquired, the deadline has not started.
                replica, since = self._in_flight.get(request_id, ("", clock()))
                left = max(since, self._last_reply.get(replica, since)) + self._deadline - clock()
                if left <= 0:
                    raise ReplicaLost(replica, f"no reply for {self._deadline:g} s (rollout.deadline_seconds)")
                await asyncio.wait({pending}, timeout=left)
            if sent := self._in_flight.get(request_id):
                self._last_reply[sent[0]] = clock()
            return pending.result()
        finally:
            pending.cancel()
            await asyncio.wait({pending})


class DiffusionWholeSampleRetryLLMServerClient(DiffusionLLMServerClient):
    """Retries an aborted sample from the start, because its finished steps used weights that may have been replaced.

    For `LLMServerManager.get_client(client_cls=DiffusionWholeSampleRetryLLMServerClient)`.

    Args:
        max_retries: attempts after the first one. A sample that is still aborted after them is returned as it is.
        retry_wait_s: seconds before each retry.

    Raises:
        ValueError: `max_retries` is negative.
    """

    def __init__(self, *args: Any, max_retries: int = 50, retry_wait_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative: {max_retries}")
        self.max_retries = max_retries
        self.retry_wait_s = retry_wait_s

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        """Generate one sample; its `min_global_steps` and `max_global_steps` cover the weight versions of all attempts.

        Raises:
            ReplicaError, ReplicaCallFailed: as of the base class.
        """
        output = await super().generate(request_id, **kwargs)
        versions = [output.extra_fields.get("global_steps")]
        for _ in range(self.max_retries):
            if output.stop_reason != "aborted":
                break
            await asyncio.sleep(self.retry_wait_s)
            output = await super().generate(request_id, **kwargs)
            versions.append(output.extra_fields.get("global_steps"))
        if known := [version for version in versions if version is not None]:
            output.extra_fields |= {"min_global_steps": min(known), "max_global_steps": max(known)}
        return output


def prompt_keys(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Keys of the prompt and of the negative prompt.

    None, so that nothing is shared, for prompts with videos, audio, images that are not PIL's, or a value that is
    neither JSON nor an array of numbers.

    Requests with the same key have the same embeddings and input images. The key covers all sampling parameters but the
    seeds, because they decide how long embeddings are and whether there are negative ones.

    Args:
        arguments: as in `vLLMOmniHttpServer.generate`.
    """
    images = arguments.get("image_data") or []
    if any(arguments.get(name) is not None for name in MEDIA) or not all(isinstance(one, Image) for one in images):
        return None
    params = {name: value for name, value in (arguments.get("sampling_params") or {}).items() if name not in SEEDS}
    given = {name: value for name, value in arguments.items() if name not in PER_SAMPLE and value is not None}
    negative = {name: value for name, value in given.items() if name.startswith("negative")}
    positive = {name: value for name, value in given.items() if name not in negative}
    shown = [(image.mode, image.size, _hash(image.tobytes())) for image in images]
    if shown:
        positive["image_data"] = shown
    try:
        return _digest("prompt", positive, params), _digest("negative", negative, shown, params)
    except (TypeError, ValueError):  # `repr` of another value may omit what differs
        return None


def _digest(*parts: Any) -> str:
    return _hash(json.dumps(parts, sort_keys=True, default=_array_content).encode())


def _array_content(value: Any) -> list[Any]:
    """Type, shape and hash of all elements. Raises `TypeError` unless it is an array of numbers or of text."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return ["tensor", str(value.dtype), list(value.shape), _hash(flat.numpy().tobytes())]
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return ["array", str(value.dtype), list(value.shape), _hash(value.tobytes())]
    raise TypeError(f"{type(value).__name__} has no key")


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
