"""Clients of the rollout servers: errors that name the replica, deadlines, samples that are generated again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ray.exceptions import ObjectLostError, RayActorError
from typing_extensions import override
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.llm_server import LLMServerClient

from verl_omni.utils.columns import TIMES_ABORTED, TIMES_LOST
from verl_omni.utils.root_cause import describe_error
from verl_omni.weight_sync.errors import TooFewReplicas
from verl_omni.workers.config import DiffusionRolloutConfig
from verl_omni.workers.rollout.output_groups import OutputGroup
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.replica_calls import (
    EngineDead,
    ReplicaCallFailed,
    ReplicaError,
    ReplicaLost,
    await_router,
)
from verl_omni.workers.rollout.router_calls import acquire_servers, release_servers
from verl_omni.workers.rollout.vllm_rollout.driver.request_gathering import GatheredRequest, RequestGathering

logger = logging.getLogger(__name__)
# what verl's router raises then
NO_SERVER = "No available servers"
SERVER_POLL_SECONDS = 1.0
# How often a sample is retried after its replica was lost; a rolling update may cost it one replica per old pod.
# A sample that crashes its engine would otherwise crash every replica, and the replacements too.
LOSSES_OF_A_SAMPLE = 5
REASONS_SHOWN = 3
NOT_SENT = frozenset({"priority", "mm_processor_output"})  # arguments of verl's client for other engines


class DiffusionLLMServerClient(LLMServerClient):  # type: ignore[misc]
    """verl's client for whole batches, with a deadline, and with errors that name the replica.

    Requests that are made at the same time are one call to the router and one to each replica. A program that runs many
    rows announces each with `row`, so that none is sent before all rows have asked.

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
        self._deadline = float(getattr(rollout, "deadline_seconds", DiffusionRolloutConfig.deadline_seconds))
        self._standalone = getattr(rollout, "min_replicas", None) is not None
        self._waits = waits
        self._last_reply: dict[str, float] = {}  # replica -> time of its last reply
        # Arguments of the router's `acquire_server` and `release_server`, which it is asked for once.
        self._router_fields: tuple[list[str], list[str]] | None = None
        self._gathering = RequestGathering(self._send)

    def row(self) -> AbstractContextManager[None]:
        """Announce a row of a batch, which asks for samples inside the block."""
        return self._gathering.row()

    async def _acquire(self, requests: Sequence[GatheredRequest]) -> tuple[list[str], dict[str, Any]]:
        """The replica of each request, as the router chooses it, and the replicas' handles; waits for one to join.

        Raises:
            TooFewReplicas: the router has none, and none can join, or none did within `rollout.deadline_seconds`.
            ReplicaCallFailed: as `await_router`.
        """
        if self._router_fields is None:
            router = self._load_balancer
            fields = asyncio.gather(router.require_acquire_fields.remote(), router.require_release_fields.remote())
            acquire_fields, release_fields = await await_router(fields)
            self._router_fields = acquire_fields, release_fields
        names = self._router_fields[0]
        calls = [
            {"request_id": request.request_id}
            | {name: request.arguments[name] for name in names if name in request.arguments}
            for request in requests
        ]
        clock = asyncio.get_running_loop().time
        until = clock() + self._deadline
        while True:
            try:
                return await await_router(self._load_balancer.__ray_call__.remote(acquire_servers, calls))
            except RuntimeError as error:  # as Ray raises the router's own
                if not self._standalone or NO_SERVER not in str(error):
                    raise
                if not self._waits or clock() > until:
                    none = f"joined within {self._deadline:g} s (rollout.deadline_seconds)"
                    none = none if self._waits else "has the weights of this batch"
                    raise TooFewReplicas(f"all rollout replicas are lost, and no other one {none}") from error
            await asyncio.sleep(SERVER_POLL_SECONDS)

    def _release(self, replica: str, requests: Sequence[GatheredRequest]) -> None:
        """Tell the router, without waiting for it, that a replica has ended requests."""
        assert self._router_fields is not None, "it was asked when the replica was acquired"
        with_ids = "request_id" in self._router_fields[1]
        calls = [
            {"server_id": replica} | ({"request_id": request.request_id} if with_ids else {}) for request in requests
        ]
        self._load_balancer.__ray_call__.remote(release_servers, calls)

    @override
    @rollout_trace_op
    async def generate(self, request_id: str, **kwargs: Any) -> DiffusionOutput:
        """Generate one sample; arguments as in `vLLMOmniHttpServer.generate`.

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
                output = await self._gathering.ask(request_id, kwargs)
                version = output.extra_fields.get("global_steps")
                output.extra_fields.setdefault("min_global_steps", version)
                output.extra_fields.setdefault("max_global_steps", version)
                if losses:
                    output.extra_fields[TIMES_LOST] = len(losses)
                return output
            except ReplicaLost as lost:
                await self._leave_out(lost)
                losses.append(lost)
                if len(losses) > LOSSES_OF_A_SAMPLE:
                    last = "; ".join(str(loss) for loss in losses[-REASONS_SHOWN:])
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

    async def _send(self, requests: list[GatheredRequest]) -> None:
        """Send requests to the replicas that the router chooses, and settle them."""
        try:
            chosen, servers = await self._acquire(requests)
        except Exception as error:  # noqa: BLE001  raised where each request is awaited
            for request in requests:
                request.settle(error)
            return
        shares: dict[str, list[GatheredRequest]] = {}
        for replica, request in zip(chosen, requests, strict=True):
            shares.setdefault(replica, []).append(request)
        calls = (self._call(replica, servers[replica], share) for replica, share in shares.items())
        await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, replica: str, server: Any, requests: list[GatheredRequest]) -> None:
        """Have a replica generate the samples of requests, and settle them as they finish."""
        call = asyncio.current_task()
        unsettled = dict(enumerate(requests))

        def stop_if_unwanted(_: Any) -> None:
            if call is not None and unsettled and all(request.answer.cancelled() for request in unsettled.values()):
                call.cancel()

        for request in requests:
            request.answer.add_done_callback(stop_if_unwanted)
        try:
            replies = server.generate_batch.remote([self._sent_arguments(request) for request in requests])
            async for group in self._groups(replica, replies):
                ended = [(unsettled.pop(number), output) for number, output in group.outputs()]
                self._release(replica, [request for request, _ in ended])
                for request, output in ended:
                    request.settle(self._named(replica, output) if isinstance(output, Exception) else output)
            error: Exception = ReplicaLost(replica, f"its call ended without {len(unsettled)} outputs")
        except Exception as raised:  # noqa: BLE001  raised where each request is awaited
            error = raised
        finally:
            if unsettled:
                self._release(replica, list(unsettled.values()))
        for request in unsettled.values():
            request.settle(self._named(replica, error))

    def _sent_arguments(self, request: GatheredRequest) -> dict[str, Any]:
        arguments = {
            name: value for name, value in request.arguments.items() if name not in NOT_SENT and value is not None
        }
        return {**arguments, "request_id": self._vllm_request_id(request.request_id)}

    def _named(self, replica: str, error: Exception) -> Exception:
        """The error of a request as its caller gets it: it names the replica, and says whether that is lost."""
        if isinstance(error, ReplicaLost):
            return error
        named: Exception
        if isinstance(error, ReplicaError):
            # It names the replica already. Ray's wrapper would add the text of the whole traceback.
            named = getattr(error, "cause", error)
            if self._standalone and isinstance(named, EngineDead):
                named = ReplicaLost(replica, f"its engine has ended: {named.reason}")
        elif isinstance(error, (RayActorError, ObjectLostError)):
            # An output is lost with the node of the replica that has made it.
            named = ReplicaLost(replica, describe_error(error))
        else:
            # Without Ray's traceback, after which a reader of the last line would miss the replica.
            named = ReplicaCallFailed(f"replica {replica}: {describe_error(error)}")
        if named is not error:
            named.__cause__ = error
        return named

    async def _groups(self, replica: str, replies: Any) -> AsyncIterator[OutputGroup]:
        """The replies of a replica to one call.

        Raises:
            ReplicaLost: it sent nothing, for this call or another one, for `rollout.deadline_seconds`.
        """
        clock = asyncio.get_running_loop().time
        since = clock()
        while True:
            reply = asyncio.ensure_future(_next_reply(replies))
            try:
                while not reply.done():
                    left = max(since, self._last_reply.get(replica, since)) + self._deadline - clock()
                    if left <= 0:
                        raise ReplicaLost(replica, f"no reply for {self._deadline:g} s (rollout.deadline_seconds)")
                    await asyncio.wait({reply}, timeout=left)
            finally:
                reply.cancel()
                await asyncio.wait({reply})
            self._last_reply[replica] = clock()
            if (group := reply.result()) is None:
                return
            yield group


async def _next_reply(replies: AsyncIterator[Awaitable[OutputGroup]]) -> OutputGroup | None:
    """The next object of one of Ray's streams; None at its end."""
    reference = await anext(replies, None)
    return None if reference is None else await reference


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
        losses = output.extra_fields.get(TIMES_LOST, 0)
        for _ in range(self.max_retries):
            if output.stop_reason != "aborted":
                break
            await asyncio.sleep(self.retry_wait_s)
            output = await super().generate(request_id, **kwargs)
            versions.append(output.extra_fields.get("global_steps"))
            losses += output.extra_fields.get(TIMES_LOST, 0)
        if len(versions) > 1:
            output.extra_fields |= {TIMES_ABORTED: len(versions) - 1, TIMES_LOST: losses}
        if known := [version for version in versions if version is not None]:
            output.extra_fields |= {"min_global_steps": min(known), "max_global_steps": max(known)}
        return output
