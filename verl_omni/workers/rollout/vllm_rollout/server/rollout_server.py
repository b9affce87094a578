"""`vLLMOmniHttpServer`: verl's rollout server, running vLLM-Omni's engine."""

import argparse
import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any
from uuid import uuid4

from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.utils import run_uvicorn

from verl_omni.platforms.server_profile import server_profile
from verl_omni.utils.postscript import forbid_programs
from verl_omni.utils.rendezvous_ports import held_port
from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
from verl_omni.workers.rollout import cpu_settings
from verl_omni.workers.rollout.output_groups import OutputGroup, in_groups
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.replica_calls import EngineDead, ReplicaError
from verl_omni.workers.rollout.vllm_rollout.language_model.mode import LanguageModelMode
from verl_omni.workers.rollout.vllm_rollout.server import shared_memory
from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode
from verl_omni.workers.rollout.vllm_rollout.server.engine_control import EngineControlServer
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
from verl_omni.workers.rollout.vllm_rollout.server.http_app import Policy, PolicyEngine, build_http_app
from verl_omni.workers.rollout.vllm_rollout.server.model_mode import WORKER_EXTENSION, ModelMode
from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

logger = logging.getLogger(__name__)
NO_PROMPT = frozenset({"sampling_params", "request_id", "priority"})  # arguments of `generate`


class vLLMOmniHttpServer(EngineControlServer):
    """One replica's server: starts the engine, generates samples and serves HTTP."""

    # --- hooks of verl's server -----------------------------------------------------------------------

    @override
    def _init_config(self, config: Any) -> DiffusionRolloutConfig:
        parsed = omega_conf_to_dataclass(config)
        if get_device_name() == "cpu":
            for message in cpu_settings.messages(parsed):  # none where the replica has fitted them
                logger.warning(message)
            parsed = cpu_settings.fit(parsed)
        # verl adds the replica's rank to the seed, which must therefore be a number.
        return replace(parsed, seed=0) if parsed.seed is None else parsed

    @override
    def _init_model_config(self, model_config: Any) -> DiffusionModelConfig | HFModelConfig:
        self._mode = select_mode(self.config)
        return self._mode.load_model_config(model_config)

    @override
    def _validate_configs(self) -> None:
        self._mode.complete_rollout_config(self.config)

    @override
    def _get_override_generation_config(self) -> dict[str, Any]:
        return self._mode.generation_defaults(super()._get_override_generation_config())

    @override
    def _get_engine_kwargs_key(self) -> str:
        return "vllm_omni"

    @override
    def _get_worker_extension_cls(self) -> str:
        from verl.utils.device import is_torch_npu_available

        npu = is_torch_npu_available(check_device=False)
        return self._mode.npu_worker_extension if npu else WORKER_EXTENSION

    @override
    def _get_cli_modules(self) -> list[Any]:
        return [importlib.import_module("vllm_omni.entrypoints.cli.serve")]

    @override
    def _get_cli_description(self) -> str:
        return "vLLM-Omni CLI"

    @override
    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        self._mode.drop_engine_kwargs(engine_kwargs)

    # --- start and stop -------------------------------------------------------------------------------

    @override
    async def run_server(self, args: argparse.Namespace) -> None:
        from vllm_omni.entrypoints import AsyncOmni

        if self.config.external_lib:
            importlib.import_module(self.config.external_lib)
        forbid_programs()  # requests over HTTP have images
        engine_args = self._mode.engine_args(args, self.config, self.model_config)
        engine_args["log_stats"] = not self.config.disable_log_stats
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        server_profile().tune_process(executor=engine_args["distributed_executor_backend"])
        with held_port() as port:  # the engine's worker listens on it when it has loaded its modules
            os.environ["MASTER_PORT"] = str(port)
            self.engine = AsyncOmni(**engine_args)
        self._shared = shared_memory.child_segments()
        app = await build_http_app(PolicyEngine(self.engine, self._policy, self._http), args)
        self._server_port, self._server_task = await run_uvicorn(app, args, self._server_address)

    @override
    async def run_headless(self, args: argparse.Namespace) -> None:
        raise NotImplementedError("vLLM-Omni headless mode is not implemented yet.")

    async def shutdown(self) -> None:
        """Stop the engine and remove the shared memory of its workers, which Ray kills."""
        self.engine.shutdown()
        shared_memory.remove_segments(self._shared)

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
        prompt_text: str | None = None,
        negative_prompt_text: str | None = None,
    ) -> DiffusionOutput | TokenOutput:
        """Generate one sample.

        Args:
            prompt_ids: ids of the model's first tokenizer; `extra_prompt_ids` are ids for other encoders.
            prompt_mask: 1 for each of `prompt_ids` to attend to; the others, such as padding, are removed.
            prompt_text, negative_prompt_text: texts, where the ids lose case or spacing; None: the ids are decoded.
            sampling_params: fields of the engine and of `DiffusionRolloutAlgoConfig`, and `logprobs`; unchanged. The
                model's pipeline gets those with other names; the log names what it does not read.
            request_id: unique among the requests in flight.
            priority: for language models whose engine has `scheduling_policy: priority`, the lowest first; all other
                engines serve requests in the order in which they arrive.

        Returns:
            The sample, with the version of its weights in `extra_fields["global_steps"]`; empty and with stop
            reason `aborted` if the request was aborted.

        Raises:
            ValueError: a parameter is of a wrong type or out of range, or the prompt of a language model is too long.
            PartialWeights: a full update of a language model's weights failed part-way, or an adapter reached only
                some workers of this replica.
            ReplicaError: the engine failed; the message names this replica and its weights. `EngineDead`: it has ended.
        """
        request = RolloutRequest(
            prompt_ids=prompt_ids,
            negative_prompt_ids=negative_prompt_ids,
            prompt_mask=prompt_mask,
            extra_prompt_ids=extra_prompt_ids,
            negative_extra_prompt_ids=negative_extra_prompt_ids,
            image_data=image_data,
            video_data=video_data,
            audio_data=audio_data,
            prompt_text=prompt_text,
            negative_prompt_text=negative_prompt_text,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        with self.exported.in_flight():
            return await self._generate(request, sampling_params, request_id, priority)

    async def generate_batch(self, requests: Sequence[Mapping[str, Any]]) -> AsyncIterator[OutputGroup]:
        """Generate several samples that a caller wants at the same time, so that the engine gets them together.

        Args:
            requests: arguments of `generate`, by name.

        Yields:
            The outputs, as they finish. In the place of a failed one is the exception that `generate` would raise.
        """
        marks = self._mode.call_params(uuid4().hex, len(requests))
        calls = [self._generate(*_divided(request, mark)) for request, mark in zip(requests, marks, strict=True)]
        in_flight = len(calls)
        self.exported.count(in_flight)
        try:
            async for ended in in_groups(calls):
                group = OutputGroup.of(ended)
                in_flight -= len(ended)
                self.exported.count(-len(ended))
                yield group
        finally:
            if in_flight:
                self.exported.count(-in_flight)

    async def _generate(
        self, request: RolloutRequest, sampling_params: dict[str, Any], request_id: str, priority: int
    ) -> DiffusionOutput | TokenOutput:
        # The engine admits requests while only a part of it is awake, and then refuses them. During a weight update, it
        # would start them between two of the update's calls.
        await self._ready.wait()
        if await self._park_until_admitted(request_id) is not None:
            return self._mode.aborted_output(sampling_params, self.global_steps)
        # verl would count it as being admitted until its first output, the finished sample. AsyncOmni counts its own.
        with self._mode.hold_weights():
            try:
                lora = await self._lora_request()
                arguments = self._mode.engine_request(
                    request, sampling_params, lora, self.config, self.engine.default_sampling_params_list
                )
            finally:
                self._admitting -= 1
            version = self._version()
            try:
                result = await last_output(self.engine.generate(request_id=request_id, priority=priority, **arguments))
            except Exception as error:
                kind = EngineDead if await self._has_ended(error) else ReplicaError
                raise kind(self.replica_rank, version, f"{type(error).__name__}: {error}") from error
            return self._mode.to_output(result, sampling_params, version)

    @asynccontextmanager
    async def _policy(self) -> AsyncIterator[Policy]:
        """Adapter and weight version for one HTTP request that has passed the gate."""
        with self._mode.hold_weights():
            yield Policy(await self._lora_request(), self._version())

    def _version(self) -> int | None:
        return self._worker_version if self._worker_version is not None else self.global_steps

    @cached_property
    def _lora_lookup(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def _lora_request(self) -> Any:
        """The adapter's request once it is loaded. Cached, because `list_loras` waits for the running forward pass."""
        self.check_weights()
        if not self.lora_as_adapter:
            return None
        async with self._lora_lookup:  # one call for all requests of a batch: each would end with a forward pass
            if self._lora_loaded is None:
                self._lora_loaded = VLLM_LORA_INT_ID in await self.engine.list_loras()
        if not self._lora_loaded:
            return None
        from vllm_omni.lora.request import LoRARequest

        return LoRARequest(lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH)


def _divided(
    arguments: Mapping[str, Any], more_params: Mapping[str, Any]
) -> tuple[RolloutRequest, dict[str, Any], str, int]:
    """Arguments of `_generate`, from the arguments of `generate` and further sampling parameters."""
    prompt = {name: value for name, value in arguments.items() if name not in NO_PROMPT}
    params = {**arguments["sampling_params"], **more_params}
    return RolloutRequest(**prompt), params, arguments["request_id"], arguments.get("priority", 0)


def select_mode(config: DiffusionRolloutConfig) -> ModelMode:
    """The mode that `engine_kwargs.vllm_omni.output_mode` selects: `ar`, or `diffusion` (default).

    Raises:
        ValueError: another value.
    """
    mode = ((config.engine_kwargs or {}).get("vllm_omni") or {}).get("output_mode")
    if mode not in ("ar", "diffusion", None):
        raise ValueError(f"Unknown engine_kwargs.vllm_omni.output_mode: {mode!r}; one of ['ar', 'diffusion']")
    return LanguageModelMode() if mode == "ar" else DiffusionMode()
