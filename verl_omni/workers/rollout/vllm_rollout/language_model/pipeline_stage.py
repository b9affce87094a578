"""Registration of a language model with vLLM-Omni's engine, as a pipeline of one autoregressive stage."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vllm_omni.config.config_factory import StageConfigFactory
from vllm_omni.config.pipeline_registry import register_pipeline
from vllm_omni.config.stage_config import PipelineConfig, StageExecutionType, StagePipelineConfig
from vllm_omni.engine.arg_utils import OmniEngineArgs

from verl_omni.platforms.server_profile import server_profile


def register_language_model(model: str, *, trust_remote_code: bool) -> None:
    """Register a language model, which the engine of this process would otherwise load as a diffusion model.

    A model for which vLLM-Omni has a pipeline keeps that pipeline.

    Args:
        model: folder in transformers' layout.

    Raises:
        ValueError: transformers cannot read the config, or it names no architecture.
    """
    if StageConfigFactory.get_pipeline_config(model, trust_remote_code) is not None:
        return
    config = StageConfigFactory.get_hf_config(model, trust_remote_code)
    architectures = getattr(config, "architectures", None)
    if config is None or not architectures:
        raise ValueError(f"{model} is not a language model: its config.json is missing or names no architecture")
    register_pipeline(
        PipelineConfig(
            model_type=config.model_type,
            model_arch=architectures[0],
            stages=(
                StagePipelineConfig(
                    stage_id=0,
                    model_stage="language_model",
                    execution_type=StageExecutionType.LLM_AR,
                    final_output=True,
                    final_output_type="text",
                    owns_tokenizer=True,
                    scheduler_cls=server_profile().language_model_scheduler,
                ),
            ),
        )
    )


def drop_default_settings(engine_args: dict[str, Any]) -> None:
    """Remove default values from the nested settings of `asdict(OmniEngineArgs)`, in place.

    vLLM rejects some of these defaults: `cudagraph_capture_sizes` of its compilation config must not be None.
    """
    defaults = asdict(OmniEngineArgs(model=engine_args["model"]))
    for name, default in defaults.items():
        if isinstance(default, dict) and isinstance(given := engine_args[name], dict):
            chosen = {key: value for key, value in given.items() if key not in default or value != default[key]}
            if chosen:
                engine_args[name] = chosen
            else:
                del engine_args[name]
