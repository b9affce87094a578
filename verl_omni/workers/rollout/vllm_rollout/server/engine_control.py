"""`EngineControlServer`: control of a running engine: weight updates, abort, drain, sleep and wake."""

import asyncio
import os
from functools import cached_property
from typing import Any

from typing_extensions import override
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.v1.engine.exceptions import EngineDeadError

from verl_omni.weight_sync.errors import PartialWeights, parse_error
from verl_omni.workers.rollout.replica_calls import EngineDead
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import (
    EngineControlError,
    check_acknowledgements,
    check_worker_replies,
    wait_until,
)
from verl_omni.workers.rollout.vllm_rollout.server.http_gate import HttpGate
from verl_omni.workers.rollout.vllm_rollout.server.model_mode import ModelMode
from verl_omni.workers.rollout.vllm_rollout.server.replica_metrics import ReplicaMetrics

DRAIN_SECONDS = float(os.environ.get("VERL_OMNI_ABORT_DRAIN_TIMEOUT_S", "120"))
ADMISSION_SECONDS = 60.0
UPDATE = "update_weights_from_ipc"
COMMIT = "commit_adapter"
FORGET = "forget_finished_requests"
# keys of the gate of requests over HTTP
SLEEP = "sleep"
PAUSE = "pause"


class EngineControlServer(vLLMHttpServer):  # type: ignore[misc]
    """Base of the server, which selects the mode, starts the engine and serves requests."""

    _mode: ModelMode
    _differing: str | None = None  # why the workers may have different adapters
    _mixed: str | None = None  # why a language model may have old and new weights

    @override
    def _post_init(self, cuda_visible_devices: str) -> None:
        self._lora_loaded: bool | None = None
        self._worker_version: int | None = None  # version that the workers attach to samples
        self._asleep: set[str] = set()
        self._ready = asyncio.Event()  # unless a part sleeps or weights are being updated
        self._ready.set()

    @cached_property
    def exported(self) -> ReplicaMetrics:
        """The metrics of this replica."""
        return ReplicaMetrics(self.replica_rank)

    @cached_property
    def _http(self) -> HttpGate:
        """Holds requests over HTTP, for which no caller of this server waits."""
        return HttpGate(self.config.deadline_seconds, self.exported.in_flight)

    @override
    def _get_wake_up_tags(self) -> list[str]:
        return ["weights"]

    @override
    def _resolve_sleep_level(self) -> int:
        # Level 2 drops weights that training never sends (text encoders, VAE), and vLLM-Omni 0.30 cannot wake from it.
        return 1

    @override
    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker. Returns their replies.

        New requests wait during a weight update, and those over HTTP start again after it. All workers receive an
        adapter before the first one serves it, so after a failed transfer all have the old one. If serving it fails in
        one worker only, such as for lack of memory, that one has the old adapter and the others have the new one:
        requests then fail until an update has succeeded (`check_weights`).

        Raises:
            EngineControlError: any worker failed.
            WeightSyncError: a weight update while a language model serves requests.
        """
        if method != UPDATE:
            replies = await self.engine.collective_rpc(method=method, timeout=timeout, args=args, kwargs=kwargs)
            return check_worker_replies(method, replies)
        self._ready.clear()
        try:
            async with self._http.closed("the weights of this replica are being updated"):
                return await self._update_weights(timeout, args, kwargs)
        finally:
            if not self._asleep:
                self._ready.set()

    async def _update_weights(
        self, timeout: float | None, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> list[Any]:
        self._mode.check_idle()
        if self.config.step_execution:
            unfinished = list(self.engine.request_states)
            told = await self.engine.collective_rpc(method=FORGET, timeout=timeout, args=(unfinished,))
            check_worker_replies(FORGET, told)
        version = (kwargs or {}).get("global_steps")
        staging = {**(kwargs or {}), "stage_adapter": True}
        replies = await self.engine.collective_rpc(method=UPDATE, timeout=timeout, args=args, kwargs=staging)
        self._lora_loaded = None
        try:
            flat = check_worker_replies(UPDATE, replies)
        except EngineControlError as error:
            if isinstance(cause := parse_error(str(error)), PartialWeights):
                self._mixed = cause.args[0]
            raise
        if all(reply["lora"] for reply in flat):  # every worker has received it
            if len(flat) > 1:
                self._differing = f"the update to version {version} did not end"
            replies = await self.engine.collective_rpc(method=COMMIT, timeout=timeout, args=(version,))
            try:
                flat = [
                    update | commit for update, commit in zip(flat, check_worker_replies(COMMIT, replies), strict=True)
                ]
            except EngineControlError as error:
                self._differing = str(error) if len(flat) > 1 else None  # a single worker keeps the old adapter
                raise
        else:
            self._mixed = None  # which an adapter does not repair
        self._differing = None
        self._worker_version = version
        await self.clear_kv_cache()
        self.exported.received(flat)
        return flat

    def check_weights(self) -> None:
        """Return if all workers serve the same weights.

        Raises:
            PartialWeights: some of them may serve the adapter before, or a part of the weights before: the last update
                ended while they changed them.
        """
        if self._mixed is not None:
            raise PartialWeights(self._mixed)
        if self._differing is not None:
            raise PartialWeights(
                f"workers of replica {self.replica_rank} may have different adapters, until a weight update succeeds: "
                f"{self._differing}"
            )

    @override
    async def set_global_steps(self, global_steps: int) -> None:
        # Weights may have arrived without an update that told the workers their version.
        if self._worker_version != global_steps:
            await self.collective_rpc("note_weights_version", args=(global_steps,))
            self._worker_version = global_steps
        self.global_steps = global_steps
        self._lora_loaded = None
        self.exported.serves(global_steps)

    async def get_global_steps(self) -> int | None:
        """Version of the weights of new samples; None before the first update."""
        return self.global_steps

    async def check_engine(self) -> None:
        """Return if the engine can serve requests.

        Raises:
            EngineDead: the engine, or the process of one of its workers, has ended. This process may go on after it.
        """
        try:
            await self.engine.check_health()
        except EngineDeadError as error:
            raise EngineDead(self.replica_rank, self.global_steps, f"{type(error).__name__}: {error}") from error

    async def _has_ended(self, error: Exception) -> bool:
        """Whether the engine has ended, if a request failed with this error, and not only the request.

        One that is being generated when a worker dies fails with an error that says only what its caller waited for.
        """
        if isinstance(error, EngineDeadError):
            return True
        try:
            await self.engine.check_health()
        except EngineDeadError:
            return True
        return False

    async def requests_in_flight(self) -> int:
        """Number of requests that were accepted and not answered."""
        return self.exported.requests

    @override
    async def wait_for_requests_to_drain(self, deadline: float = DRAIN_SECONDS) -> None:
        """Wait until no request is in flight.

        Raises:
            TimeoutError: requests are still in flight after `deadline` seconds.
        """
        await wait_until(lambda: not self.engine.request_states, deadline=deadline, waiting_for="draining requests")

    @override
    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Hold or reject new requests and abort those in flight, until `resume_generation`.

        The returned count includes requests that the engine had just finished; their outputs are complete.

        Raises:
            TimeoutError: requests are still being admitted or in flight after a deadline.
        """
        self._submission_paused = True
        self._rejecting = reject_request
        self._resume_event.clear()
        await self._http.close(PAUSE, "this replica was told to hold requests")
        # Wait for requests that are being admitted: behind the engine's pause no abort would find them.
        await wait_until(lambda: self._admitting == 0, deadline=ADMISSION_SECONDS, waiting_for="admitting requests")
        running = self._running()  # read before the pause, which ends the requests of a language model
        await self.engine.pause_generation(mode="abort", clear_cache=False)
        await wait_until(
            lambda: self.engine._admitting == 0, deadline=ADMISSION_SECONDS, waiting_for="submitting requests"
        )
        if left := self._running():
            await self.engine.abort(left)
        await self.wait_for_requests_to_drain()
        ids = list(dict.fromkeys([*running, *left]))
        return {"aborted_count": len(ids), "request_ids": ids}

    @override
    async def open_submission_gate(self) -> None:
        await super().open_submission_gate()
        self._http.open(PAUSE)

    def _running(self) -> list[str]:
        return [state.external_request_id for state in self.engine.request_states.values()]

    @override
    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Abort one request; `aborted` is False if it is not in flight."""
        in_flight = request_id in self._running()
        if in_flight:
            await self.engine.abort(request_id)
        return {"aborted": in_flight, "request_id": request_id}

    @override
    async def sleep(self) -> None:
        """Put the workers to sleep if they share their accelerators with training; requests wait until all are awake.

        Raises:
            EngineControlError: a stage refused, or did not reply. Requests wait for `wake_up` then too.
            TimeoutError: the engine did not drop the requests over HTTP. It does not sleep.
        """
        if self.node_rank == 0 and self.config.free_cache_engine and self.rollout_mode != RolloutMode.STANDALONE:
            await self._sleep_hybrid()

    @override
    async def _sleep_hybrid(self) -> None:
        self._ready.clear()
        # Before the call: if it fails, stages may sleep all the same, and `wake_up` wakes them and admits requests.
        slept = self._asleep
        self._asleep = {"weights", "kv_cache"}
        try:
            await self._http.close(SLEEP, "this replica sleeps while the trainer uses its accelerators")
        except TimeoutError:  # the engine was not told to sleep, and would not acknowledge that it wakes up
            self._asleep = slept
            self._admit_if_awake()
            raise
        acknowledgements = await self.engine.sleep(level=self._resolve_sleep_level())
        self._lora_loaded = None
        check_acknowledgements("sleep", acknowledgements, stages=self._stages())

    @override
    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake the workers; generation resumes once everything that slept is awake.

        Raises:
            EngineControlError: a stage refused, or did not reply.
        """
        waking = self._asleep & set(tags or ["weights", "kv_cache"])
        if not waking:
            return
        acknowledgements = await self.engine.wake_up(tags=sorted(waking))
        self._lora_loaded = None
        check_acknowledgements("wake_up", acknowledgements, stages=self._stages())
        self._asleep -= waking
        await self._resume_engine()
        self._admit_if_awake()

    def _admit_if_awake(self) -> None:
        if not self._asleep:
            self._ready.set()
            self._http.open(SLEEP)

    async def _resume_engine(self) -> None:
        if not self._asleep and not self._submission_paused:
            await self._mode.resume_engine(self.engine)

    def _stages(self) -> int:
        return len(self.engine.default_sampling_params_list)

    @override
    async def clear_kv_cache(self) -> None:
        """Drop what a language model computed from prompts; a diffusion stage keeps nothing beyond a request."""
        await self._mode.clear_cache(self.engine)
        await self._resume_engine()

    @override
    async def release_kv_cache(self) -> None:
        """Keep the cache: a language model's stays allocated, and a diffusion stage has none."""

    @override
    async def resume_kv_cache(self) -> None:
        """See `release_kv_cache`."""
