"""`DiffusionMode`: images and videos from a pipeline of `verl_omni.pipelines`."""

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name

from verl_omni.compat import whole_batches
from verl_omni.pipelines.registry import (
    POST_PROCESS,
    check_engine_settings,
    check_prompt_cache,
    reads_extra_ids,
    refuse_prompt_cache,
    refuse_steps,
)
from verl_omni.pipelines.registry import family as family_of
from verl_omni.platforms.server_profile import server_profile
from verl_omni.utils.registry import load
from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.vllm_rollout.server import outputs, requests
from verl_omni.workers.rollout.vllm_rollout.server.model_mode import ModelMode, Params
from verl_omni.workers.rollout.vllm_rollout.server.sampling_checks import check_sampling

logger = logging.getLogger(__name__)
# What verl's command line has of the settings of `rollout` and `model` that a diffusion stage takes.
FROM_COMMAND_LINE = (
    "model",
    "trust_remote_code",
    "dtype",
    "tensor_parallel_size",
    "data_parallel_size",
    "enforce_eager",
    "enable_sleep_mode",
    "distributed_executor_backend",
    "worker_extension_cls",
)
NPU_WORKER_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.npu_utils.vLLMOmniNPUColocateWorkerExtension"


class DiffusionMode(ModelMode):
    """A diffusion stage has no cache, and its worker itself refuses requests and updates that would mix weights."""

    npu_worker_extension = NPU_WORKER_EXTENSION

    def __init__(self) -> None:
        self._architecture = ""
        self._unread: set[str] = set()  # sampling parameters that the log has named

    @override
    def load_model_config(self, config: Any) -> DiffusionModelConfig:
        model_config: DiffusionModelConfig = omega_conf_to_dataclass(config)
        self._architecture = str(model_config.architecture)
        return model_config

    @override
    def drop_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        """Drops all: the command line takes some of them in another form, and ignores others (`OmniEngineArgs`)."""
        engine_kwargs.clear()

    @override
    def engine_args(
        self, args: argparse.Namespace, config: DiffusionRolloutConfig, model_config: Any
    ) -> dict[str, Any]:
        from vllm_omni.diffusion.registry import register_diffusion_model

        whole_batches.apply()
        family = family_of(model_config.architecture)
        # The engine looks up post-processing by architecture; workers load the pipeline class by its name.
        register_diffusion_model(
            model_config.architecture,
            *family.pipeline.split(":"),
            pre_process_func_name=family.pre_process,
            post_process_func_name=POST_PROCESS,
        )
        pipeline = load(family.pipeline)
        # The engine looks only whether the class has the methods, which an editing model inherits.
        if config.step_execution and not getattr(pipeline, "supports_step_execution", False):
            refuse_steps(model_config.architecture)
        if config.prompt_cache_dir:
            if not getattr(pipeline, "caches_prompts", False):
                refuse_prompt_cache(model_config.architecture)
            check_prompt_cache(model_config.architecture, args.tensor_parallel_size)
        settings = dict((config.engine_kwargs or {}).get("vllm_omni") or {})
        check_engine_settings(model_config.architecture, settings)
        batches = config.step_execution or getattr(pipeline, "supports_request_batch", False)
        return {
            **{name: getattr(args, name) for name in FROM_COMMAND_LINE},
            **_attention(settings, config.rollout_attn_backend),
            **settings,
            "max_num_seqs": settings.get("max_num_seqs", args.max_num_seqs) if batches else 1,
            "step_execution": config.step_execution,
            "custom_pipeline_args": {
                "pipeline_class": family.pipeline_class,
                "prompt_cache_dir": config.prompt_cache_dir,
                "offload_text_encoders": config.offload_text_encoders,
            },
        }

    @override
    def engine_request(
        self, request: requests.RolloutRequest, params: Params, lora: Any, config: Any, stage_defaults: Sequence[Any]
    ) -> dict[str, Any]:
        is_of_user = reads_extra_ids(self._architecture)  # a user's pipeline may read any parameter, too
        requests.check_extra_ids(request, self._architecture, reads=is_of_user)
        if not is_of_user:
            self._name_unread(params)
        sampling = requests.engine_sampling_params(params)
        check_sampling(sampling, device=get_device_name(), over_http=False)
        sampling.lora_request = lora
        return {
            "prompt": requests.engine_prompt(request, several_stages=len(stage_defaults) > 1),
            "sampling_params_list": [*stage_defaults[:-1], sampling],
        }

    def _name_unread(self, params: Params) -> None:
        """Log each sampling parameter that nothing reads, once."""
        for name, sentence in requests.describe_unread(params).items():
            if name not in self._unread:
                self._unread.add(name)
                logger.warning("%s", sentence)

    @override
    def call_params(self, call: str, size: int) -> list[dict[str, Any]]:
        return whole_batches.call_params(call, size)

    @override
    def to_output(self, result: Any, params: Params, global_steps: int | None) -> DiffusionOutput:
        return outputs.to_diffusion_output(result, requests.sample_format(params), global_steps=global_steps)

    @override
    def aborted_output(self, params: Params, global_steps: int | None) -> DiffusionOutput:
        return outputs.aborted_output(requests.sample_format(params), global_steps=global_steps)


def _attention(given: dict[str, Any], backend: str) -> dict[str, Any]:
    """The engine's `diffusion_attention_config`, with the settings that `given` has of it, which are taken out."""
    named = given.pop("diffusion_attention_backend", None)
    roles = given.pop("diffusion_attention_config", None)
    # The engine of a model with a registered pipeline (Wan) takes no backend by its name.
    if named is not None:
        return {"diffusion_attention_config": {**(roles or {}), "default": {"backend": named}}}
    return {"diffusion_attention_config": server_profile().attention_config(backend) if roles is None else roles}
