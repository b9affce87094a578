"""PURE: settings of vLLM-Omni's diffusion stage that `rollout.engine_kwargs.vllm_omni` hands the engine.

`reference_settings.yaml` has those that a stage of this trainer cannot take, with the reasons.
"""

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_omni.settings_schema.reference_settings import Rejected, find_rule
from verl_omni.settings_schema.setting import refused_choice, refused_type

GROUP = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni"
BATCH = f"{GROUP}.max_num_seqs"


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """One setting of the stage; null means that it is not set.

    Attributes:
        kind: type of its values: bool, int, float, str or dict. A dict may be written as JSON text.
        meaning: a line of docs/reference/settings.md.
        choices: the only values; empty: the engine checks them.
        of: another setting, without which this one does nothing.
    """

    kind: type
    meaning: str
    choices: tuple[str, ...] = ()
    of: str | None = None


SETTINGS: dict[str, EngineSetting] = {
    "boundary_ratio": EngineSetting(
        float, "share of the noise levels that a model's second transformer computes; must be the model's own"
    ),
    "cache_backend": EngineSetting(
        str,
        "cache of transformer blocks between steps, which changes the samples",
        ("none", "cache_dit", "tea_cache", "mag_cache"),
    ),
    "cache_config": EngineSetting(dict, "settings of `cache_backend`", of="cache_backend"),
    "diffusion_attention_backend": EngineSetting(str, "attention backend, in place of `rollout_attn_backend`"),
    "diffusion_attention_config": EngineSetting(dict, "attention backends by the role of a layer"),
    "diffusion_compile_dynamic": EngineSetting(
        bool, "compile for sizes that vary; needs `rollout.enforce_eager=false`"
    ),
    "diffusion_compile_granularity": EngineSetting(
        str, "compile each block, or the whole transformer; needs `rollout.enforce_eager=false`", ("regional", "full")
    ),
    "diffusion_kv_cache_dtype": EngineSetting(str, "`fp8`: attention in 8 bits on Hopper GPUs"),
    "diffusion_kv_cache_skip_layers": EngineSetting(
        str, "layers without it, such as `0-2,29`", of="diffusion_kv_cache_dtype"
    ),
    "diffusion_kv_cache_skip_steps": EngineSetting(
        str, "steps without it, such as `0-2,9`", of="diffusion_kv_cache_dtype"
    ),
    "distributed_executor_backend": EngineSetting(
        str, "`mp`: the engine's worker is a process; `uni`: a thread of the server", ("mp", "uni")
    ),
    "enable_cache_dit_summary": EngineSetting(bool, "log what `cache_dit` reused", of="cache_backend"),
    "enable_cpu_offload": EngineSetting(
        bool, "text encoders and transformer take turns on the accelerator; needs `rollout.enable_sleep_mode=false`"
    ),
    "enable_diffusion_pipeline_profiler": EngineSetting(bool, "log the duration of each part of the pipeline"),
    "enable_layerwise_offload": EngineSetting(
        bool,
        "a few blocks of the transformer are on the accelerator at a time; needs `rollout.enable_sleep_mode=false` and "
        "an adapter (`model.lora_rank`)",
    ),
    "enable_multithread_weight_load": EngineSetting(bool, "read the model's files in several threads"),
    "enable_prompt_embed_cache": EngineSetting(
        bool, "keep the embeddings of the last prompts; not with input images, on which embeddings depend"
    ),
    "fa_deterministic": EngineSetting(bool, "deterministic flash attention"),
    "flow_shift": EngineSetting(
        float, "shift of the sampler's schedule, in place of the model's scheduler configuration"
    ),
    "force_cutlass_fp8": EngineSetting(bool, "CUTLASS kernels for checkpoints in fp8"),
    "init_timeout": EngineSetting(int, "seconds in which the engine must start (600)"),
    "max_num_seqs": EngineSetting(int, "requests per engine batch, in place of `rollout.max_num_seqs`"),
    "num_weight_load_threads": EngineSetting(int, "threads of `enable_multithread_weight_load`"),
    "prompt_embed_cache_size": EngineSetting(
        int, "prompts of `enable_prompt_embed_cache`", of="enable_prompt_embed_cache"
    ),
    "quantization": EngineSetting(str, "quantize the transformer's weights, such as `fp8`; needs an adapter"),
    "quantization_config": EngineSetting(dict, "the same, with settings"),
    "request_batch_max_wait_ms": EngineSetting(float, "how long a batch that is not full waits for more requests"),
    "vae_parallel_mode": EngineSetting(
        str,
        "how `vae_patch_parallel_size` divides a sample",
        ("tile", "spatial_shard_height", "spatial_shard_width"),
        of="vae_patch_parallel_size",
    ),
    "vae_patch_parallel_size": EngineSetting(
        int, "accelerators of a replica that decode a sample together, at most `rollout.tensor_model_parallel_size`"
    ),
    "vae_use_slicing": EngineSetting(bool, "decode one sample of a batch at a time"),
    "vae_use_tiling": EngineSetting(bool, "decode a large sample in tiles"),
}
FLASH_ATTENTION = ("diffusion_kv_cache_dtype", "fa_deterministic")
OFFLOADS = ("enable_cpu_offload", "enable_layerwise_offload")
ADAPTER_ONLY = ("enable_layerwise_offload", "quantization", "quantization_config")
ADVICE: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a group of settings",
}


def python_name(name: str) -> str:
    """A name with underscores, as vLLM-Omni's parameters; recipes may use the command line's hyphens."""
    return name.replace("-", "_")


def full_name(name: str) -> str:
    """The trainer's name of a setting that may be spelled with hyphens below `GROUP`; other names stay."""
    if not name.startswith(f"{GROUP}."):
        return name
    setting, dot, inner = name.removeprefix(f"{GROUP}.").partition(".")
    return f"{GROUP}.{python_name(setting)}{dot}{inner}"


def read(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the engine that settings are, in their types, and a line for each setting that is refused.

    Settings without effect (`reference_settings.yaml`) and those that are null are left out.

    Args:
        given: values by names in either spelling.
    """
    arguments: dict[str, Any] = {}
    problems: list[str] = []
    for spelled, value in given.items():
        name = python_name(spelled)
        if name not in SETTINGS:
            problems += _problems_of_others(name, value)
            continue
        if value is None:
            continue
        try:
            converted = typed(name, value)
        except ValueError as error:
            problems.append(f"{GROUP}.{name}: {error}")
            continue
        if name in arguments and arguments[name] != converted:
            problems.append(f"{GROUP}.{name}: has two values, {arguments[name]} and {converted}; write one")
        arguments[name] = converted
    return arguments, problems


def conflicts(rollout: Any, *, trains_adapter: bool) -> Iterator[str]:
    """A line for each setting of the engine that other settings rule out.

    Args:
        rollout: the settings `actor_rollout_ref.rollout`, with the engine's in their types.
    """
    engine = rollout.engine_kwargs["vllm_omni"]
    offloads = [name for name in OFFLOADS if engine.get(name)]
    if len(offloads) > 1:
        yield f"{GROUP}.{offloads[0]}: is not read with {offloads[1]}; write one"
    if offloads and rollout.nnodes == 0 and rollout.enable_sleep_mode is not False:
        yield (
            f"{GROUP}.{offloads[0]}: an engine's sleep does not free offloaded weights; write "
            "actor_rollout_ref.rollout.enable_sleep_mode=false"
        )
    if offloads and rollout.offload_text_encoders:
        yield (
            f"{GROUP}.{offloads[0]}: moves the text encoders too; write "
            "actor_rollout_ref.rollout.offload_text_encoders=false"
        )
    for name in ADAPTER_ONLY:
        if engine.get(name) and not trains_adapter:
            yield (
                f"{GROUP}.{name}: updates of all weights cannot write weights that the engine keeps in another form; "
                "train an adapter (actor_rollout_ref.model.lora_rank)"
            )
    ranks = engine.get("vae_patch_parallel_size") or 1
    size = rollout.tensor_model_parallel_size
    if ranks > size:
        yield f"{GROUP}.vae_patch_parallel_size: {ranks} is more than tensor_model_parallel_size, which is {size}"


def without_effect(
    engine: Mapping[str, Any], *, enforce_eager: bool, attention_backend: str
) -> Iterator[tuple[str, str]]:
    """(name, reason) of each setting that does nothing with the others.

    Args:
        engine: settings in their types.
        enforce_eager, attention_backend: `rollout.enforce_eager` and `rollout.rollout_attn_backend`.
    """
    backend = engine.get("diffusion_attention_backend", attention_backend)
    plain_attention = backend == "TORCH_SDPA" and "diffusion_attention_config" not in engine
    for name in engine:
        needed = SETTINGS[name].of
        if needed is not None and _asks_for_nothing(engine.get(needed)):
            yield name, f"{needed} is not set"
        if name.startswith("diffusion_compile_") and enforce_eager:
            yield name, "with rollout.enforce_eager=true nothing is compiled"
        if name in FLASH_ATTENTION and plain_attention:
            yield name, "the attention backend TORCH_SDPA does not read it"


def _asks_for_nothing(value: Any) -> bool:
    return value in (None, False, "none") or (type(value) is int and value <= 1)


def _problems_of_others(name: str, value: Any) -> Iterator[str]:
    """Why a name that is not one of `SETTINGS` is refused; nothing if its value asks for nothing."""
    rule = find_rule(f"{GROUP}.{name}")
    if isinstance(rule, Rejected) and not rule.accepts(value):
        yield f"{GROUP}.{name}: {refused_choice(value, rule.accepted, rule.advice)}"
    if rule is None:
        yield describe_unknown(name)


def describe_unknown(name: str) -> str:
    """Message about a name that the engine does not have."""
    near = difflib.get_close_matches(name, SETTINGS, n=1)
    return f"{GROUP}.{name}: unknown setting" + (f"; did you mean {near[0]}?" if near else "")


def typed(name: str, value: Any) -> Any:
    """The value of one of `SETTINGS` in the type that the engine expects.

    Raises:
        ValueError: the value is of another type, or not one of the setting's choices.
    """
    setting = SETTINGS[name]
    converted = _converted(setting.kind, value)
    if converted is None and name == "quantization_config" and isinstance(value, str) and value:
        return value
    if converted is None or value == "":
        raise ValueError(refused_type(value, ADVICE[setting.kind]))
    if setting.choices and converted not in setting.choices:
        raise ValueError(refused_choice(value, setting.choices, setting.meaning))
    return converted


def _converted(kind: type, value: Any) -> Any:
    """The value as `kind`; None: it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool:
        return bool(value) if isinstance(value, bool) or (is_number and value in (0, 1)) else None
    if kind is int:
        return int(value) if is_number and math.isfinite(value) and value == int(value) else None
    if kind is float:
        return float(value) if is_number else None
    if kind is str:
        return str(value) if isinstance(value, str) or is_number else None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return dict(value) if isinstance(value, Mapping) else None
