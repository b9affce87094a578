"""Settings of the model and its samples that the model's folder and its family determine."""

from __future__ import annotations

import json

from omegaconf import DictConfig

from verl_omni.utils.model_folder import SECOND_TRANSFORMER, boundary_ratio, model_folder


def fill_in(model: DictConfig, rollout: DictConfig) -> None:
    """Fill in settings from the model's folder and its family.

    Raises:
        FileNotFoundError: the folder is not in diffusers' layout.
        ValueError: no model family matches, or the family does not support what the model or the settings have.
    """
    from verl_omni.pipelines.registry import (
        FAMILIES,
        check_engine_settings,
        family,
        reads_extra_ids,
        refuse_steps,
        training_adapter,
    )

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
    check_engine_settings(model.architecture, rollout.engine_kwargs.vllm_omni)
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
    if model.target_modules is None:
        model.target_modules = list(adapter.LORA_TARGETS)
    if model.target_modules == "all-linear" and model.exclude_modules is None:
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
