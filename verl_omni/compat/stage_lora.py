"""Patch: vLLM-Omni hands a language model's stage vLLM's arguments of LoRA.

Fault: its configuration of such a stage has no field for `enable_lora` and the others, so `AsyncOmni` refuses them
(vllm_omni/config/omni_config.py, `_LLM_STAGE_ENGINE_FIELDS`), while its workers support adapters.
Remove when: `AsyncOmni(model, enable_lora=True)` of a language model does not raise.
"""

from typing import Any

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})
ARGUMENTS = ("enable_lora", "max_loras", "max_lora_rank", "fully_sharded_loras", "lora_dtype")


def apply(engine_args: dict[str, Any]) -> None:
    """Remove vLLM's LoRA arguments from `AsyncOmni`'s, and apply them to the stages that this process starts."""
    require("vllm-omni", TESTED, "stage_lora")
    from vllm_omni.engine import stage_init_utils, stage_runtime

    lora_arguments = {name: engine_args.pop(name) for name in ARGUMENTS if name in engine_args}
    build = stage_init_utils.build_engine_args_dict_from_omni_stage_config

    def build_with_lora(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**build(*args, **kwargs), **lora_arguments}

    stage_runtime.build_engine_args_dict_from_omni_stage_config = build_with_lora
