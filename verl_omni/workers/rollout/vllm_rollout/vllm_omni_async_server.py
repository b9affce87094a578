"""`vLLMOmniHttpServer` and `vLLMOmniReplica`: verl's rollout server with vLLM-Omni's engine inside."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import ray
from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.net_utils import get_free_port
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from verl.workers.rollout.utils import run_uvicorn
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from verl_omni.utils.errors import ReplicaError
from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
from verl_omni.workers.rollout.llm_server import DiffusionWholeSampleRetryLLMServerClient
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.vllm_rollout import requests, shared_memory
from verl_omni.workers.rollout.vllm_rollout.answering import AnsweringReplica
from verl_omni.workers.rollout.vllm_rollout.control import (
    checked_acknowledgements,
    checked_answers,
    last,
    until,
)
from verl_omni.workers.rollout.vllm_rollout.http_app import PolicyEngine, http_app
from verl_omni.workers.rollout.vllm_rollout.modes import EXTENSION, mode_of
from verl_omni.workers.rollout.vllm_rollout.utils import (
    VLLM_LORA_INT_ID,
    VLLM_LORA_NAME,
    VLLM_LORA_PATH,
)
from verl_omni.workers.rollout.vllm_rollout.weights_gate import WeightsGate

__all__ = ["DiffusionWholeSampleRetryLLMServerClient", "vLLMOmniHttpServer", "vLLMOmniReplica"]

DRAIN_SECONDS = float(os.environ.get("VERL_OMNI_ABORT_DRAIN_TIMEOUT_S", "120"))
ADMISSION_SECONDS = 60.0
UPDATE = "update_weights_from_ipc"
# The host platform has no memory pool and runs the worker in the server's process.
UNI_EXECUTOR = "uni"
# There the model and the requests share one interpreter lock. By Python's default a request would wait 5 ms for it at
# each step of its way, many times over, while a batch is drawn; so the next batch would find two requests and not all.
SWITCH_SECONDS = 0.0005


class vLLMOmniHttpServer(vLLMHttpServer):  # type: ignore[misc]
    """One replica's engine: generates samples, takes weights, sleeps and wakes."""

    # --- what the parent asks a subclass -------------------------------------------------------------

    @override
    def _init_config(self, config: Any) -> DiffusionRolloutConfig:
        made = omega_conf_to_dataclass(config)
        # The parent adds the replica's rank to the seed: it must be a number.
        return replace(made, seed=0) if made.seed is None else made

    @override
    def _init_model_config(self, model_config: Any) -> DiffusionModelConfig | HFModelConfig:
        self._mode = mode_of(self.config)
        return self._mode.model_config(model_config)

    @override
    def _validate_configs(self) -> None:
        self._mode.fit(self.config)

    @override
    def _post_init(self, cuda_visible_devices: str) -> None:
        self._lora_loaded: bool | None = None
        self._noted_version: int | None = None  # what the workers stamp samples with
        self._asleep: set[str] = set()
        self._awake = asyncio.Event()
        self._awake.set()
        self._weights = WeightsGate()

    @override
    def _get_override_generation_config(self) -> dict[str, Any]:
        return self._mode.generation_config(super()._get_override_generation_config())

    @override
    def _get_engine_kwargs_key(self) -> str:
        return "vllm_omni"

    @override
    def _get_worker_extension_cls(self) -> str:
        from verl.utils.device import is_torch_npu_available

        return self._mode.npu_extension if is_torch_npu_available(check_device=False) else EXTENSION

    @override
    def _get_cli_modules(self) -> list[Any]:
        return [importlib.import_module("vllm_omni.entrypoints.cli.serve")]

    @override
    def _get_cli_description(self) -> str:
        return "vLLM-Omni CLI"

    @override
    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        for name in ("output_mode", *self._mode.ignored_engine_kwargs):
            engine_kwargs.pop(name, None)

    @override
    def _get_wake_up_tags(self) -> list[str]:
        return ["weights"]

    @override
    def _resolve_sleep_level(self) -> int:
        # Level 2 drops weights that training never sends again (text encoders, VAE), and 0.28 cannot wake from it.
        return 1

    # --- start ----------------------------------------------------------------------------------------

    @override
    async def run_server(self, args: argparse.Namespace) -> None:
        from vllm_omni.engine.arg_utils import OmniEngineArgs
        from vllm_omni.entrypoints import AsyncOmni

        if self.config.external_lib:
            importlib.import_module(self.config.external_lib)
        engine_args = asdict(OmniEngineArgs.from_cli_args(args))
        self._mode.prepare(engine_args, self.config, self.model_config)
        engine_args["log_stats"] = not self.config.disable_log_stats
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(get_free_port("127.0.0.1")[0])
        if engine_args["distributed_executor_backend"] == UNI_EXECUTOR:
            sys.setswitchinterval(SWITCH_SECONDS)
        self.engine = AsyncOmni(**engine_args)
        self._shared = shared_memory.of_children()
        app = await http_app(PolicyEngine(self.engine, self._policy), args)
        self._server_port, self._server_task = await run_uvicorn(app, args, self._server_address)

    @override
    async def run_headless(self, args: argparse.Namespace) -> None:
        raise NotImplementedError("vLLM-Omni headless mode is not implemented yet.")

    # --- generate ---------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        negative_prompt_ids: list[int] | None = None,
        prompt_mask: list[int] | None = None,
        priority: int = 0,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        extra_prompt_ids: dict[str, list[int]] | None = None,
        negative_extra_prompt_ids: dict[str, list[int]] | None = None,
    ) -> DiffusionOutput | TokenOutput:
        """Make one sample.

        Args:
            prompt_ids: ids of the model's first tokenizer, unpadded; `extra_prompt_ids` has those of other encoders.
            sampling_params: the engine's own fields and those of `DiffusionRolloutAlgoConfig`; `logprobs`
                asks for log-probabilities. Not changed.
            request_id: unique among the requests in flight.

        Returns:
            The sample, stamped with the version of the weights that made it (`extra_fields["global_steps"]`);
            empty with stop reason `aborted` when it was cut off.

        Raises:
            ValueError: a parameter is unknown, or the prompt is too long.
            TornWeights: an update of a language model's weights broke off half-way.
            ReplicaError: the engine failed; the message names this replica and its weights.
        """
        asked = requests.Asked(
            prompt_ids=prompt_ids, negative_prompt_ids=negative_prompt_ids, prompt_mask=prompt_mask,
            extra_prompt_ids=extra_prompt_ids, negative_extra_prompt_ids=negative_extra_prompt_ids,
            image_data=image_data, video_data=video_data, audio_data=audio_data,
            mm_processor_kwargs=mm_processor_kwargs,
        )  # fmt: skip
        # The engine would let in what waits when a part of it is awake, and then refuse it.
        await self._awake.wait()
        if await self._park_until_admitted(request_id) is not None:
            return self._mode.aborted(sampling_params, self.global_steps)
        # The parent counts admissions to know when its gate is closed. Its count would hold until the first
        # output, which for a diffusion model is the whole image; AsyncOmni keeps a count of its own.
        async with AsyncExitStack() as answering:
            try:
                await answering.enter_async_context(self._weights.request())
                lora = await self._lora_request()
                arguments = self._mode.arguments(
                    asked, sampling_params, lora, self.config, self.engine.default_sampling_params_list
                )
            finally:
                self._admitting -= 1
            version = self._noted_version if self._noted_version is not None else self.global_steps
            try:
                result = await last(self.engine.generate(request_id=request_id, **arguments))
            except Exception as error:
                raise ReplicaError(self.replica_rank, version, f"{type(error).__name__}: {error}") from error
            return self._mode.output(result, sampling_params, version)

    @asynccontextmanager
    async def _policy(self) -> AsyncIterator[Any]:
        """The policy's adapter for a plain client's request, which waits while the replica sleeps, as training's do."""
        await self._awake.wait()
        async with self._weights.request():
            yield await self._lora_request()

    async def _lora_request(self) -> Any:
        """The adapter's request once it is loaded; the answer is kept, because asking waits behind every forward."""
        if not self.lora_as_adapter:
            return None
        if self._lora_loaded is None:
            self._lora_loaded = VLLM_LORA_INT_ID in await self.engine.list_loras()
        if not self._lora_loaded:
            return None
        from vllm_omni.lora.request import LoRARequest

        return LoRARequest(lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH)

    # --- control --------------------------------------------------------------------------------------

    @override
    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call every worker and return their answers.

        Raises:
            EngineControlError: any worker failed.
            WeightSyncError: new weights come while a language model answers requests.
        """
        if method != UPDATE:
            answers = await self.engine.collective_rpc(method=method, timeout=timeout, args=args, kwargs=kwargs)
            return checked_answers(method, answers)
        # A worker of diffusion models itself knows when its weights may change.
        with self._weights.update() if self._mode.language_model else nullcontext():
            answers = await self.engine.collective_rpc(method=UPDATE, timeout=timeout, args=args, kwargs=kwargs)
            self._lora_loaded = None
            flat = self._weights.checked(UPDATE, answers)
            self._noted_version = (kwargs or {}).get("global_steps")
            await self.clear_kv_cache()
            return flat

    @override
    async def set_global_steps(self, global_steps: int) -> None:
        # Weights may have come by another way than the update that told the workers their version.
        if self._noted_version != global_steps:
            await self.collective_rpc("note_weights_version", args=(global_steps,))
            self._noted_version = global_steps
        self.global_steps = global_steps
        self._lora_loaded = None

    async def get_global_steps(self) -> int | None:
        """Version of the weights that new samples are made by; None before the first update."""
        return self.global_steps

    @override
    async def wait_for_requests_to_drain(self, deadline: float = DRAIN_SECONDS) -> None:
        """Wait until no request is in flight.

        Raises:
            TimeoutError: some still are after `deadline` seconds.
        """
        await until(lambda: not self.engine.request_states, deadline=deadline, waiting_for="draining requests")

    @override
    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Close the gate, cut off what runs, and wait until it is gone; `resume_generation` opens again.

        It counts what was in flight, with what the engine had just finished, which is answered whole.

        Raises:
            TimeoutError: admissions or requests did not settle.
        """
        self._submission_paused, self._rejecting = True, reject_request
        self._resume_event.clear()
        # What is past our gate first: it would wait behind the engine's pause, where no abort finds it.
        await until(lambda: self._admitting == 0, deadline=ADMISSION_SECONDS, waiting_for="admitting requests")
        running = self._running()  # a pause ends those of a language model
        await self.engine.pause_generation(mode="abort", clear_cache=False)
        await until(lambda: self.engine._admitting == 0, deadline=ADMISSION_SECONDS, waiting_for="submitting requests")
        if left := self._running():
            await self.engine.abort(left)
        await self.wait_for_requests_to_drain()
        ids = list(dict.fromkeys([*running, *left]))
        return {"aborted_count": len(ids), "request_ids": ids}

    def _running(self) -> list[str]:
        return [state.external_request_id for state in self.engine.request_states.values()]

    @override
    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Cut off one request; `aborted` is False when it is not here."""
        here = request_id in self._running()
        if here:
            await self.engine.abort(request_id)
        return {"aborted": here, "request_id": request_id}

    @override
    async def sleep(self) -> None:
        """Put the workers to sleep, where verl shares their devices with training; requests wait until all are awake.

        Raises:
            EngineControlError: a stage refused, or did not answer.
        """
        if self.node_rank == 0 and self.config.free_cache_engine and self.rollout_mode != RolloutMode.STANDALONE:
            await self._sleep_hybrid()

    @override
    async def _sleep_hybrid(self) -> None:
        self._awake.clear()
        answers = await self.engine.sleep(level=self._resolve_sleep_level())
        self._lora_loaded = None
        checked_acknowledgements("sleep", answers, stages=self._stages())
        self._asleep = {"weights", "kv_cache"}

    @override
    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake the workers; generation goes on once all that slept is awake.

        Raises:
            EngineControlError: a stage refused, or did not answer.
        """
        wanted = self._asleep & set(tags or ["weights", "kv_cache"])
        if not wanted:
            return
        answers = await self.engine.wake_up(tags=sorted(wanted))
        self._lora_loaded = None
        checked_acknowledgements("wake_up", answers, stages=self._stages())
        self._asleep -= wanted
        if not self._asleep:
            await self._reopen()
            self._awake.set()

    async def _reopen(self) -> None:
        """vLLM-Omni holds the requests of a language model after a sleep or a pause, until it is told."""
        if self._mode.language_model and not self._asleep and not self._submission_paused:
            await self.engine.resume_generation()

    def _stages(self) -> int:
        return len(self.engine.default_sampling_params_list)

    @override
    async def clear_kv_cache(self) -> None:
        """Forget what a language model computed of prompts; a diffusion stage keeps nothing beyond a request."""
        if self._mode.language_model:
            # The one call of AsyncOmni that reaches the cache; its `reset_prefix_cache` does nothing yet.
            await self.engine.pause_generation(mode="keep", clear_cache=True)
            await self._reopen()

    @override
    async def release_kv_cache(self) -> None:
        """The cache of a language model stays where it is, a diffusion stage has none."""

    @override
    async def resume_kv_cache(self) -> None:
        """See `release_kv_cache`."""

    async def shutdown(self) -> None:
        """Stop the engine; without this, a killed process would leave its shared memory behind."""
        self.engine.shutdown()
        shared_memory.remove(self._shared)


class vLLMOmniReplica(AnsweringReplica):
    """The servers of one replica; it must fit in one node."""

    def __init__(
        self,
        replica_rank: int,
        config: Any,
        model_config: Any,
        gpus_per_node: int = 8,
        is_reward_model: bool = False,
        is_teacher_model: bool = False,
        name_suffix: str = "",
    ) -> None:
        super().__init__(
            replica_rank, config, model_config, gpus_per_node, is_reward_model, is_teacher_model, name_suffix
        )
        self.server_class = ray.remote(vLLMOmniHttpServer)

    def _validate_launch_requirements(self) -> None:
        """Nothing beyond what the parent checks."""

    @override
    def _get_server_name_prefix(self) -> str:
        return "vllm_omni_"
