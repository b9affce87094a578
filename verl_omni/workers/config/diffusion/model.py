"""Typed settings of the model: `actor_rollout_ref.model`.

Fields without an explanation here are explained in `trainer/config/diffusion_trainer.yaml`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from verl.base_config import BaseConfig

from verl_omni.settings_schema.declarations import NEW_ALPHA
from verl_omni.utils.model_layout import plain_folder
from verl_omni.utils.registry import import_modules
from verl_omni.workers.algorithms import registry
from verl_omni.workers.algorithms.other_names import canonical
from verl_omni.workers.config.diffusion import reference_fields
from verl_omni.workers.config.diffusion.dtypes import parse_dtype
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE, with_defaults

ATTN_BACKENDS = ("native", "_native_npu", "_flash_3_varlen_hub")


@dataclass
@with_defaults("actor_rollout_ref.model")
class DiffusionModelConfig(BaseConfig):
    """A model in diffusers' folder layout.

    Attributes:
        path: folder with `model_index.json`; where weights have names of a variant such as `fp16`, it becomes a folder
            of links with plain names.
        algorithm: training algorithm that the samples are for, the same as `actor.diffusion_loss.loss_mode`.
        extra_tokenizers: tokenizers of the model's other text encoders, {name: {path, max_length}}; without
            `max_length` prompts are not truncated.
        attn_backend: the trainer's attention kernel, by diffusers' name.
        lora_alpha, lora_init_weights: as in peft's `LoraConfig`.
        lora: read by verl's server.
        policy_state_adapters: `default`, and `old` to keep an old policy.
        fsdp_layer_prefixes: name prefixes of the layers that FSDP2 shards one by one.
        enable_gradient_checkpointing: keep only the input of each layer for the backward pass, which computes the
            rest again.
        algo, pipeline: copies of settings of the rollout, which they must equal; None: not given.
        config_path, mtp, target_parameters, transformer_subfolder, use_shm: the reference's; only
            their defaults.
        model_type: the reference's; without effect.
        tokenizer, processor: loaded from `tokenizer_path`, and from `<path>/processor` if that exists.

    Raises:
        FileNotFoundError: the folder or its `model_index.json` is missing.
        ValueError: `algorithm` or `attn_backend` is unknown, `lora_dtype` is not float32, one of
            `extra_tokenizers` has no path, or a value of the reference's settings is not supported.
        TypeError: `target_modules` is neither a string nor a list of strings.
    """

    _mutable_fields: ClassVar[set[str]] = {
        "tokenizer",
        "processor",
        "local_path",
        "hf_config",
        "architecture",
        "tokenizer_path",
    }

    path: str = ""
    algorithm: str = registry.DEFAULT
    architecture: str | None = FROM_FILE
    tokenizer_path: str | None = FROM_FILE
    local_path: str | None = None
    trust_remote_code: bool = FROM_FILE
    external_lib: Any = FROM_FILE  # OmegaConf has no union with a list
    custom_chat_template: str | None = FROM_FILE
    extra_tokenizers: dict[str, dict[str, Any]] | None = field(default_factory=dict)
    attn_backend: str = FROM_FILE
    lora_rank: int = FROM_FILE
    lora_alpha: int = NEW_ALPHA
    lora_dtype: str | None = FROM_FILE
    lora_init_weights: str = FROM_FILE
    lora_adapter_path: str | None = FROM_FILE
    target_modules: Any = FROM_FILE
    exclude_modules: Any = FROM_FILE
    lora: dict[str, Any] = field(default_factory=dict)  # read by verl's server: .get("rank"), .get("merge")
    policy_state_adapters: tuple[str, ...] = ("default",)
    fsdp_layer_prefixes: list[str] = field(default_factory=lambda: ["transformer_blocks."])
    enable_gradient_checkpointing: bool = False
    hf_config: Any = None  # read by verl's server; a diffusion model has none
    tokenizer: Any = None
    processor: Any = None
    algo: dict[str, Any] | None = None
    pipeline: dict[str, Any] | None = None
    model_type: str = "diffusion_model"
    config_path: str | None = FROM_FILE
    target_parameters: list[str] | None = FROM_FILE
    transformer_subfolder: str = FROM_FILE
    mtp: dict[str, Any] | None = None
    use_shm: bool = FROM_FILE

    def __post_init__(self) -> None:
        reference_fields.check(self, "actor_rollout_ref.model")
        targets = self.target_modules
        listed = isinstance(targets, Sequence) and all(isinstance(name, str) for name in targets)
        if targets is not None and not listed:
            raise TypeError(f"target_modules must be a string or a list of strings, not {targets!r}")
        import_modules(self.external_lib)  # first: it may register the algorithm and the model's family
        object.__setattr__(self, "algorithm", canonical(self.algorithm))
        registry.check_name(self.algorithm)
        if self.attn_backend not in ATTN_BACKENDS:
            raise ValueError(f"Unknown attn_backend: {self.attn_backend!r}; one of {ATTN_BACKENDS}")
        if self.lora_dtype is not None and parse_dtype("model.lora_dtype", self.lora_dtype) != torch.float32:
            raise ValueError(f"model.lora_dtype: {self.lora_dtype!r} is not supported; trained weights are float32")
        for name, entry in (self.extra_tokenizers or {}).items():
            if not entry.get("path"):
                raise ValueError(f"extra_tokenizers.{name} has no path")
        root = Path(self.path)
        index = root / "model_index.json"
        if not index.is_file():
            raise FileNotFoundError(f"{index} not found: model.path must be a model in diffusers' folder layout")
        object.__setattr__(self, "path", str(plain_folder(root)))
        self.local_path = self.path
        if self.architecture is None:
            self.architecture = json.loads(index.read_text())["_class_name"]
        if self.tokenizer_path is None:
            self.tokenizer_path = str(root / "tokenizer" if (root / "tokenizer").is_dir() else root)
        from verl.utils import hf_processor, hf_tokenizer

        self.tokenizer = hf_tokenizer(self.tokenizer_path, trust_remote_code=self.trust_remote_code)
        if (root / "processor").is_dir():
            self.processor = hf_processor(str(root / "processor"), trust_remote_code=self.trust_remote_code)

    def load_extra_tokenizers(self) -> dict[str, dict[str, Any]]:
        """Load `extra_tokenizers`: {name: {"tokenizer": …, "max_length": int or None}}."""
        from verl.utils import hf_tokenizer

        return {
            name: {
                "tokenizer": hf_tokenizer(entry["path"], trust_remote_code=self.trust_remote_code),
                "max_length": entry.get("max_length"),
            }
            for name, entry in (self.extra_tokenizers or {}).items()
        }
