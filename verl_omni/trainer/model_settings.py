"""Settings of the model and its samples that the model's folder and its family determine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.utils.model_folder import SECOND_TRANSFORMER, boundary_ratio, model_folder
from verl_omni.weight_sync.staging import summarize_names

ALL_LINEAR = "all-linear"
ALPHA = 64  # of a new adapter
ADAPTER_PATH = "actor_rollout_ref.model.lora_adapter_path"


def fill_in(model: DictConfig, rollout: DictConfig) -> None:
    """Fill in settings from the model's folder and its family.

    Raises:
        FileNotFoundError: the folder is not in diffusers' layout.
        ValueError: no model family matches, the family does not support what the model or the settings have, or
            training cannot continue from `lora_adapter_path`.
    """
    from verl_omni.pipelines.registry import FAMILIES, family, reads_extra_ids, refuse_steps, training_adapter

    given, folder = model.path, model_folder(model.path, "actor_rollout_ref.model.path")
    model.path = str(folder)
    index, tokenizer = folder / "model_index.json", folder / "tokenizer" / "tokenizer_config.json"
    if not index.is_file():
        raise FileNotFoundError(
            f"actor_rollout_ref.model.path: {index} does not exist; write the folder of a model in diffusers' layout"
        )
    parts = json.loads(index.read_text())
    if model.architecture is None:
        model.architecture = parts["_class_name"]
    adapter = training_adapter(model.architecture)
    if boundary_ratio(folder) is not None and not family(model.architecture).experts:
        supported = ", ".join(name for name, each in FAMILIES.items() if each.experts)
        raise ValueError(
            f"actor_rollout_ref.model.path: {folder} has a second transformer for low noise levels, "
            f"{SECOND_TRANSFORMER}, which is supported for {supported} only, not for {model.architecture}"
        )
    if rollout.step_execution and family(model.architecture).stepwise is False:
        refuse_steps(model.architecture)
    if model.extra_tokenizers and not reads_extra_ids(model.architecture):
        model.extra_tokenizers = {}
    if model.tokenizer_path is None:
        model.tokenizer_path = f"{model.path}/tokenizer"
    elif model.tokenizer_path.startswith(f"{given}/"):  # of a hub id, below which the hub has no names
        model.tokenizer_path = str(folder / model.tokenizer_path.removeprefix(f"{given}/"))
    if model.custom_chat_template is None:
        model.custom_chat_template = adapter.CHAT_TEMPLATE
    if model.lora_adapter_path is not None:
        continue_from_adapter(model, folder, getattr(adapter, "NOT_ADAPTED", None))
    elif model.lora_alpha is None:
        model.lora_alpha = ALPHA
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
