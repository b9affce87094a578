"""`vLLMOmniHttpServer` and `vLLMOmniReplica`: verl's rollout server with vLLM-Omni's engine inside."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from dataclasses import asdict, replace
from typing import Any

import ray
from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.net_utils import get_free_port
from verl.utils.tokenizer import normalize_token_ids
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.utils import run_uvicorn
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_omni.pipelines.registry import POST_PROCESS, rollout_family
from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
from verl_omni.workers.rollout.llm_server import DiffusionWholeSampleRetryLLMServerClient
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.vllm_rollout import outputs, requests
from verl_omni.workers.rollout.vllm_rollout.control import (
    checked_acknowledgements,
    checked_answers,
    last,
    until,
)
from verl_omni.workers.rollout.vllm_rollout.utils import (
    VLLM_LORA_INT_ID,
    VLLM_LORA_NAME,
    VLLM_LORA_PATH,
)

__all__ = ["DiffusionWholeSampleRetryLLMServerClient", "vLLMOmniHttpServer", "vLLMOmniReplica"]

EXTENSION = "verl_omni.workers.rollout.vllm_rollout.utils.vLLMOmniColocateWorkerExtension"
NPU_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.npu_utils.vLLMOmniNPUColocateWorkerExtension"
DRAIN_SECONDS = float(os.environ.get("VERL_OMNI_ABORT_DRAIN_TIMEOUT_S", "120"))
ADMISSION_SECONDS = 60.0
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
        engine_kwargs = (self.config.engine_kwargs or {}).get("vllm_omni") or {}
        self._ar_mode = engine_kwargs.get("output_mode") == "ar"
        return omega_conf_to_dataclass(model_config, HFModelConfig if self._ar_mode else None)

    @override
    def _validate_configs(self) -> None:
        if self._ar_mode:
            raise NotImplementedError(
                "Autoregressive rollout (engine_kwargs.vllm_omni.output_mode=ar) is not built yet"
            )

    @override
    def _post_init(self, cuda_visible_devices: str) -> None:
        self._lora_loaded: bool | None = None

    @override
    def _get_override_generation_config(self) -> dict[str, Any]:
        return {}

    @override
    def _get_engine_kwargs_key(self) -> str:
        return "vllm_omni"

    @override
    def _get_worker_extension_cls(self) -> str:
        from verl.utils.device import is_torch_npu_available

        return NPU_EXTENSION if is_torch_npu_available(check_device=False) and not self._ar_mode else EXTENSION

    @override
    def _get_cli_modules(self) -> list[Any]:
        return [importlib.import_module("vllm_omni.entrypoints.cli.serve")]

    @override
    def _get_cli_description(self) -> str:
        return "vLLM-Omni CLI"

    @override
    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        engine_kwargs.pop("output_mode", None)

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
        from vllm.entrypoints.openai.api_server import build_app
        from vllm_omni.diffusion.registry import register_diffusion_model
        from vllm_omni.engine.arg_utils import OmniEngineArgs
        from vllm_omni.entrypoints import AsyncOmni
        from vllm_omni.entrypoints.openai.api_server import omni_init_app_state

        if self.config.external_lib:
            importlib.import_module(self.config.external_lib)
        found = rollout_family(self.model_config.architecture, self.model_config.algorithm)
        # The engine looks up post-processing by architecture; the class itself travels to the workers by name.
        register_diffusion_model(
            self.model_config.architecture, found.rollout_module, found.pipeline, post_process_func_name=POST_PROCESS
        )
        engine_args = asdict(OmniEngineArgs.from_cli_args(args))
        engine_args["custom_pipeline_args"] = {"pipeline_class": found.pipeline_class}
        engine_args["step_execution"] = self.config.step_execution
        if not self.config.step_execution and not _batches_requests(found.pipeline_class):
            engine_args["max_num_seqs"] = 1
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(get_free_port("127.0.0.1")[0])
        if engine_args["distributed_executor_backend"] == UNI_EXECUTOR:
            sys.setswitchinterval(SWITCH_SECONDS)
        self.engine = AsyncOmni(**engine_args)
        app = build_app(args)
        await omni_init_app_state(self.engine, app.state, args)
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
    ) -> DiffusionOutput:
        """Make one sample.

        Args:
            prompt_ids: ids of the model's first tokenizer, unpadded.
            sampling_params: the engine's own fields and those of `DiffusionRolloutAlgoConfig`; `logprobs`
                asks for log-probabilities. Not changed.
            request_id: unique among the requests in flight.

        Returns:
            The sample, stamped with the version of the weights that made it (`extra_fields["global_steps"]`);
            empty with stop reason `aborted` when it was cut off.
        """
        latent = requests.wants_latent(sampling_params)
        rejected = await self._park_until_admitted(request_id)
        if rejected is not None:
            return outputs.aborted(latent=latent, global_steps=self.global_steps)
        # The parent counts admissions to know when its gate is closed. Its count would hold until the first
        # output, which for a diffusion model is the whole image; AsyncOmni keeps a count of its own.
        try:
            stream = await self._submit(
                prompt_ids, sampling_params, request_id, image_data, video_data, negative_prompt_ids, prompt_mask
            )
        finally:
            self._admitting -= 1
        version = self.global_steps
        result = await last(stream)
        return outputs.diffusion_output(
            result, latent=latent, log_probs=bool(sampling_params.get("logprobs")), global_steps=version
        )

    async def _submit(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None,
        video_data: list[Any] | None,
        negative_prompt_ids: list[int] | None,
        prompt_mask: list[int] | None,
    ) -> Any:
        params = requests.sampling_params(sampling_params)
        params.lora_request = await self._lora_request()
        media = {"image": image_data, "video": video_data}
        prompt = requests.prompt(
            normalize_token_ids(prompt_ids),
            negative_prompt_ids=normalize_token_ids(negative_prompt_ids) if negative_prompt_ids is not None else None,
            prompt_mask=prompt_mask,
            multi_modal_data={name: value for name, value in media.items() if value is not None},
            several_stages=len(self.engine.default_sampling_params_list) > 1,
        )
        stages = [*self.engine.default_sampling_params_list[:-1], params]
        return self.engine.generate(prompt=prompt, request_id=request_id, sampling_params_list=stages)

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
        """
        answers = await self.engine.collective_rpc(method=method, timeout=timeout, args=args, kwargs=kwargs)
        if method == "update_weights_from_ipc":
            self._lora_loaded = None
        return checked_answers(method, answers)

    @override
    async def set_global_steps(self, global_steps: int) -> None:
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

        Raises:
            TimeoutError: admissions or requests did not settle.
        """
        self._submission_paused, self._rejecting = True, reject_request
        self._resume_event.clear()
        await self.engine.pause_generation(mode="abort", clear_cache=False)
        await until(self._settled, deadline=ADMISSION_SECONDS, waiting_for="admitting requests")
        ids = [state.external_request_id for state in self.engine.request_states.values()]
        if ids:
            await self.engine.abort(ids)
        await self.wait_for_requests_to_drain()
        return {"aborted_count": len(ids), "request_ids": ids}

    def _settled(self) -> bool:
        return self._admitting == 0 and getattr(self.engine, "_admitting", 0) == 0

    @override
    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Cut off one request; `aborted` is False when it is not here."""
        here = any(state.external_request_id == request_id for state in self.engine.request_states.values())
        if here:
            await self.engine.abort(request_id)
        return {"aborted": here, "request_id": request_id}

    @override
    async def _sleep_hybrid(self) -> None:
        checked_acknowledgements("sleep", await self.engine.sleep(level=self._resolve_sleep_level()))
        self._lora_loaded = None

    @override
    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake the workers; generation goes on once all that slept is awake.

        Raises:
            EngineControlError: a stage refused.
        """
        if self.node_rank != 0 or self.rollout_mode == RolloutMode.STANDALONE:
            return
        checked_acknowledgements("wake_up", await self.engine.wake_up(tags=tags or ["weights", "kv_cache"]))
        self._lora_loaded = None

    @override
    async def clear_kv_cache(self) -> None:
        """A diffusion stage keeps nothing from one request to the next."""

    @override
    async def release_kv_cache(self) -> None:
        """A diffusion stage has no key-value cache to release."""

    @override
    async def resume_kv_cache(self) -> None:
        """A diffusion stage has no key-value cache to resume."""

    async def shutdown(self) -> None:
        """Stop the engine; without this, a killed process would leave its shared memory behind."""
        self.engine.shutdown()


def _batches_requests(qualified_name: str) -> bool:
    module, _, name = qualified_name.rpartition(".")
    return bool(getattr(getattr(importlib.import_module(module), name), "supports_request_batch", False))


class vLLMOmniReplica(vLLMReplica):  # type: ignore[misc]
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
