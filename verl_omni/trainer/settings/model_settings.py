"""Settings of the model and its samples that the model's folder and its family determine."""

import json
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.settings_schema.declarations import ALL_LINEAR, NEW_ALPHA, out_of_range
from verl_omni.utils.model_folder import SECOND_TRANSFORMER, boundary_ratio, model_folder
from verl_omni.weight_sync.errors import summarize_names

ADAPTER_PATH = "actor_rollout_ref.model.lora_adapter_path"
RANK = "actor_rollout_ref.model.lora_rank"
ROLLOUT = "actor_rollout_ref.rollout"


def fill_in(model: DictConfig, rollout: DictConfig) -> None:
    """Fill in settings from the model's folder and its family.

    Raises:
        FileNotFoundError: the folder is not in diffusers' layout.
        ValueError: no model family matches, the family does not support what the model or the settings have, or
            training cannot continue from `lora_adapter_path`.
    """
    from verl_omni.pipelines.registry import (
        FAMILIES,
        check_engine_settings,
        family,
        reads_extra_ids,
        refuse_steps,
        training_adapter,
    )

    named_path = model.path
    folder = model_folder(model.path, "actor_rollout_ref.model.path")
    model.path = str(folder)
    index = folder / "model_index.json"
    tokenizer = folder / "tokenizer" / "tokenizer_config.json"
    if not index.is_file():
        raise FileNotFoundError(
            f"actor_rollout_ref.model.path: {index} does not exist; write the folder of a model in diffusers' layout"
        )
    parts = json.loads(index.read_text())
    if model.architecture is None:
        model.architecture = parts["_class_name"]
    adapter = training_adapter(model.architecture)
    if boundary_ratio(folder) is not None and not family(model.architecture).experts:
        supported = ", ".join(name for name, entry in FAMILIES.items() if entry.experts)
        raise ValueError(
            f"actor_rollout_ref.model.path: {folder} has a second transformer for low noise levels, "
            f"{SECOND_TRANSFORMER}, which is supported for {supported} only, not for {model.architecture}"
        )
    _check_sampler(model.architecture, adapter, folder, rollout)
    check_engine_settings(model.architecture, rollout.engine_kwargs.vllm_omni)
    _place_prompt_cache(rollout)
    if rollout.step_execution and family(model.architecture).stepwise is False:
        refuse_steps(model.architecture)
    if model.extra_tokenizers and not reads_extra_ids(model.architecture):
        model.extra_tokenizers = {}
    if model.tokenizer_path is None:
        model.tokenizer_path = f"{model.path}/tokenizer"
    elif model.tokenizer_path.startswith(f"{named_path}/"):  # a path below a hub id, which the hub does not have
        model.tokenizer_path = str(folder / model.tokenizer_path.removeprefix(f"{named_path}/"))
    if model.custom_chat_template is None:
        model.custom_chat_template = adapter.CHAT_TEMPLATE
    if model.lora_adapter_path is not None:
        continue_from_adapter(model, folder, getattr(adapter, "NOT_ADAPTED", None))
    elif model.lora_alpha is None:
        model.lora_alpha = NEW_ALPHA
    if model.target_modules is None:
        model.target_modules = list(adapter.LORA_TARGETS)
    if model.target_modules == ALL_LINEAR and model.exclude_modules is None:
        model.exclude_modules = getattr(adapter, "NOT_ADAPTED", None)
    if model.fsdp_layer_prefixes is None:
        model.fsdp_layer_prefixes = list(adapter.LAYERS)
    length = json.loads(tokenizer.read_text())["model_max_length"] if tokenizer.is_file() else 0
    rows = adapter.prompt_rows(rollout.pipeline.max_sequence_length, int(length))
    if rollout.max_prompt_embed_length is None:
        rollout.max_prompt_embed_length = rows
    elif rollout.max_prompt_embed_length < rows and getattr(adapter, "PADS_PROMPTS", False):
        raise ValueError(
            f"actor_rollout_ref.rollout.max_prompt_embed_length: every prompt of {model.architecture} has {rows} rows "
            f"with pipeline.max_sequence_length={rollout.pipeline.max_sequence_length}, more than "
            f"{rollout.max_prompt_embed_length}; write {rows}, or leave it out"
        )


def _place_prompt_cache(rollout: DictConfig) -> None:
    """Make the folder's path absolute: engines have other working directories.

    Raises:
        ValueError: it is a URL.
    """
    folder = rollout.prompt_cache_dir
    if folder and "://" in folder:
        raise ValueError(f"{ROLLOUT}.prompt_cache_dir: must be a folder of the engines' machines, not {folder}")
    if folder:
        rollout.prompt_cache_dir = str(Path(folder).absolute())


def _check_sampler(architecture: str, adapter: Any, folder: Path, rollout: DictConfig) -> None:
    """Refuse settings of samples that the engine would refuse at the first request, and a scheduler it has no use for.

    Raises:
        ValueError: the scheduler is not supported, samples cannot have the size, prompts not the length, or the shift
            of noise levels is set twice.
    """
    from verl_omni.pipelines.sample_shapes import size_check
    from verl_omni.pipelines.scheduler_config import scheduler_config

    if hasattr(adapter, "SCHEDULERS") and (folder / "scheduler").is_dir():  # `drl fit` needs none
        scheduler_config(folder, adapter.SCHEDULERS, dynamic=adapter.DYNAMIC_SHIFT)
    # Files that are missing are found when the parts of the model are loaded.
    complete = all((folder / part / "config.json").is_file() for part in ("transformer", "vae"))
    size = size_check(architecture, folder) if complete else None
    longest = getattr(adapter, "MOST_TOKENS", None)
    evaluated = OmegaConf.merge(rollout.pipeline, rollout.val_kwargs.pipeline)
    for group, pipeline in (("pipeline", rollout.pipeline), ("val_kwargs.pipeline", evaluated)):
        name = f"{ROLLOUT}.{group}"
        length = pipeline.max_sequence_length
        if size is not None and (problem := size(pipeline.height, pipeline.width)):
            raise ValueError(f"{name}: {problem}")
        if longest is not None and length is not None and length > longest:
            raise ValueError(f"{name}.max_sequence_length: {architecture} reads at most {longest} tokens, not {length}")
    shift = rollout.pipeline.video_flow_shift
    of_engine = rollout.engine_kwargs.vllm_omni.get("flow_shift")
    if None not in (shift, of_engine) and shift != of_engine:
        raise ValueError(
            f"{ROLLOUT}.pipeline.video_flow_shift: {shift} differs from {ROLLOUT}.engine_kwargs.vllm_omni.flow_shift, "
            f"which is {of_engine}; write one of them"
        )


def continue_from_adapter(model: DictConfig, base: Path, not_adapted: str | None) -> None:
    """Take rank, alpha and layers from a saved adapter, and refuse settings that contradict it.

    Args:
        model: settings of `lora_*`, `target_modules` and `exclude_modules`.
        base: folder of the model. not_adapted: pattern of the layers that the engine cannot adapt.

    Raises:
        FileNotFoundError: there is no such adapter.
        AdapterNotUsable: it is of another model, cannot be trained, or differs from the settings.
    """
    from verl_omni.workers.actor import saved_adapter

    try:
        adapter = saved_adapter.read(model_folder(model.lora_adapter_path, ADAPTER_PATH))
        names = saved_adapter.check_base(adapter, base, model.lora_adapter_path)
    except (FileNotFoundError, saved_adapter.AdapterNotUsable) as error:
        raise type(error)(f"{ADAPTER_PATH}: {error}") from error
    for name, value, unset in (("lora_rank", adapter.rank, 0), ("lora_alpha", adapter.alpha, None)):
        if model[name] not in (unset, value):
            raise saved_adapter.AdapterNotUsable(
                f"actor_rollout_ref.model.{name}: {model[name]}, and the adapter {model.lora_adapter_path} has "
                f"{value}; leave the setting out"
            )
        model[name] = value
    if wrong := out_of_range(RANK, adapter.rank):
        raise saved_adapter.AdapterNotUsable(f"{ADAPTER_PATH}: its rank {wrong}; {saved_adapter.FUSE}")
    if not_adapted and (unreached := [layer for layer in adapter.layers if re.fullmatch(not_adapted, layer)]):
        raise saved_adapter.AdapterNotUsable(
            f"{ADAPTER_PATH}: the engine cannot adapt {summarize_names(unreached)}; {saved_adapter.FUSE}"
        )
    if model.target_modules is None:
        model.target_modules = adapter.targets(names)
        return
    excluded = model.exclude_modules or (not_adapted if model.target_modules == ALL_LINEAR else None) or []
    targets = ".*" if model.target_modules == ALL_LINEAR else _plain(model.target_modules)
    selected = set(saved_adapter.select_layers(targets, names)).difference(
        saved_adapter.select_layers(_plain(excluded), names)
    )
    if different := selected.symmetric_difference(adapter.layers):
        raise saved_adapter.AdapterNotUsable(
            f"actor_rollout_ref.model.target_modules: {targets} selects other layers than the adapter "
            f"{model.lora_adapter_path} has: {summarize_names(different)}; leave the setting out"
        )


def _plain(value: Any) -> list[str] | str:
    return value if isinstance(value, str) else list(value)
