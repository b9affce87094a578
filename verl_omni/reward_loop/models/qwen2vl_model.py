"""Qwen2-VL without its language-model head, for scorers whose own head reads a hidden state at a token of the text."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_omni.reward_loop.models.weight_files import folder_with
from verl_omni.reward_loop.setting_types import MODEL, PROCESSOR

CELL = 28  # pixels of a side of the square that a token of the language model sees
# Prefixes of weight names, as written by transformers before and since 4.52 -> prefixes in the model without heads.
_RENAMED = ((r"^(model\.)?visual\.", "visual."), (r"^model\.(language_model\.)?", "language_model."))


def read_base(path: str, added: tuple[str, ...]) -> tuple[Path, Any, Any]:
    """Folder, configuration and processor of a base model; its weights are not read.

    Args:
        added: special tokens that the scorer adds to the vocabulary, in this order.

    Raises:
        FileNotFoundError: as `base_folder`. ValueError: it is a model of another type.
    """
    from transformers import AutoConfig, AutoProcessor

    folder = base_folder(path)
    config = AutoConfig.from_pretrained(folder)
    if config.model_type != "qwen2_vl":
        raise ValueError(f"{PROCESSOR}: {folder} has a model of type {config.model_type!r}, not 'qwen2_vl'")
    processor = AutoProcessor.from_pretrained(folder, padding_side="right")
    processor.tokenizer.add_tokens(list(added), special_tokens=True)
    return folder, config, processor


def base_folder(path: str) -> Path:
    """The folder of a base model; raises as `folder_with`."""
    return folder_with(path, PROCESSOR, "Qwen2-VL", "config.json")


def check_width(head: Tensor, file: Path, config: Any) -> None:
    """Refuse a head whose first layer, [out, width], does not fit the base model.

    Raises:
        ValueError: it does not.
    """
    width = config.text_config.hidden_size
    if head.shape[1] != width:
        raise ValueError(
            f"{MODEL}: {file} has a head for a model of width {head.shape[1]}, and the base model of {PROCESSOR} "
            f"has the width {width}; write the base model that it was trained from"
        )


def make_model(
    weights: Mapping[str, Tensor], file: Path, config: Any, folder: Path, processor: Any, kind: str, added: str
) -> Any:
    """The model without heads, in the dtype of its weights.

    Args:
        weights: by their names in the file, of any version of transformers.
        kind: the model that the file should hold, for messages.
        added: the tokens that the processor has more than the base model's, for messages.

    Raises:
        ValueError: a weight is missing, or has another shape.
    """
    from transformers import Qwen2VLModel

    named = {rename(name): tensor for name, tensor in weights.items() if not name.startswith("lm_head.")}
    table = named.get("language_model.embed_tokens.weight")
    if table is None:
        raise ValueError(f"{MODEL}: {file} lacks the embeddings of tokens; write the weights of {kind}")
    tokens = len(processor.tokenizer)
    if len(table) != tokens:
        raise ValueError(
            f"{MODEL}: {file} has embeddings of {len(table)} tokens, and the tokenizer of {folder} with {added} "
            f"has {tokens}; write the base model that it was trained from"
        )
    config.text_config.vocab_size = tokens
    model, loading = Qwen2VLModel.from_pretrained(
        None, config=config, state_dict=named, dtype=table.dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    for problem, verb in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes of")):
        if names := sorted(entry if isinstance(entry, str) else entry[0] for entry in loading[problem]):
            raise ValueError(
                f"{MODEL}: {file} {verb} {len(names)} weights of the base model {folder}, such as {names[0]}; write "
                f"the base model that it was trained from"
            )
    return model


def rename(name: str) -> str:
    """PURE: the name in the model without heads of a weight in a file of any version of transformers."""
    for pattern, replacement in _RENAMED:
        name, count = re.subn(pattern, replacement, name)
        if count:
            break
    return name


def hidden_states(model: Any, inputs: Mapping[str, Tensor], seen: tuple[Tensor, ...], placeholder: int) -> Tensor:
    """Last hidden states [B, tokens, width], after the final norm.

    Positions are 0, 1, 2, ..., as in a text, also for the cells of images and videos: published reward models
    call the language model without positions, so they were trained with these.

    Args:
        inputs: `input_ids` and `attention_mask`, [B, tokens].
        seen: features [cells, width] of each image or video, for the places of the token `placeholder`.
    """
    ids = inputs["input_ids"]
    embeddings = model.get_input_embeddings()(ids)
    places = (ids == placeholder).unsqueeze(-1).expand_as(embeddings)
    embeddings = embeddings.masked_scatter(places, torch.cat(list(seen)).to(embeddings.dtype))
    positions = torch.arange(ids.shape[1], device=ids.device).expand(3, *ids.shape)
    states: Tensor = model.language_model(
        inputs_embeds=embeddings, attention_mask=inputs["attention_mask"], position_ids=positions, use_cache=False
    ).last_hidden_state
    return states
