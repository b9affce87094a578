"""`spec.model`: the model to train."""

import re
from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic.alias_generators import to_snake

from omni_operator.api.base import S3_URL, Line, Rule, StrictModel, immutable, is_in_store
from verl_omni.settings_schema.declarations import ALL_LINEAR, MOST_RANK, NEW_ALPHA

from .pods import ClaimReference, KeyReference

NO_URL = "write a folder, a model id 'owner/name' or s3://BUCKET/FOLDER"
# Two names with one slash between them. A path of that form needs a dot in front.
MODEL_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")

NOT_FETCHED = "has no effect: spec.model.base is not a model id like 'owner/name'; remove this field"
NOT_CACHED = "has no effect: spec.model.base is a folder, which is not downloaded; remove this field"
NEW_RANK = 32  # of an adapter that does not continue another one; the trainer has no default
NOT_ALONE = f"{ALL_LINEAR} is all layers; write it alone, or list suffixes"
NO_ADAPTER = "has no effect: spec.model.lora.enabled is false; remove this field"
NO_ADAPTER_URL = "write the path of a folder or file"
NO_HOME = "write the whole path: '~' is a different folder on another machine"

_IS_ID = f"matches(self.base, {MODEL_ID.pattern!r})"
_IN_STORE = f"matches(self.base, {S3_URL.pattern!r})"


class Lora(StrictModel):
    """LoRA adapter."""

    enabled: bool = Field(
        default=True, description="true: train a LoRA adapter. false: train all weights of the transformer."
    )
    start_from: Line | None = Field(
        default=None,
        description="Adapter that training starts from, of peft, diffusers or an earlier run (checkpoints/step_NNNNNN/"
        "lora): its folder or safetensors file, relative to the folder of this file. It gives rank, alpha and "
        "targetModules; the base stays the reference of a KL loss. Default: a new adapter.",
    )
    rank: int | None = Field(
        default=None, ge=1, le=MOST_RANK, description=f"Rank of the adapter. Default: {NEW_RANK}, or startFrom's."
    )
    alpha: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description=f"Scale of the adapter: its output x alpha / rank. Default: {NEW_ALPHA}, or startFrom's.",
    )
    target_modules: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=(),
        max_length=64,
        description="Suffixes of the linear layers to adapt, e.g. attn.to_q, or all-linear alone: all that the engine "
        "can adapt. Default: the attention layers of the model's family, or startFrom's.",
    )

    cel = (
        Rule(f"'{ALL_LINEAR}' not in self.target_modules or len(self.target_modules) == 1", "targetModules", NOT_ALONE),
        Rule("self.start_from is None or self.enabled", "startFrom", NO_ADAPTER),
        Rule("self.start_from is None or not self.start_from.startswith('~')", "startFrom", NO_HOME),
        Rule(
            "self.start_from is None or not contains(self.start_from, '://')",
            "startFrom",
            NO_ADAPTER_URL,
            f"{{self.start_from}} is not supported: {NO_ADAPTER_URL}",
        ),
    )


class Model(StrictModel):
    """A diffusion model in diffusers' folder layout."""

    base: Line = Field(
        description="Base model: a folder, relative to the folder of this file, a Hugging Face model id, "
        "'owner/name', or a folder in an S3-compatible store, s3://BUCKET/FOLDER. Write "
        "'./folder/name' for a folder inside a folder.",
        json_schema_extra=immutable("base"),
    )
    revision: Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] | None = (
        Field(default=None, description="Branch, tag or commit of the model id. Default: main. Cluster only.")
    )
    token_secret_ref: KeyReference | None = Field(
        default=None, description="Key of a Secret with the Hugging Face token, for a gated model id. Cluster only."
    )
    cache: ClaimReference | None = Field(
        default=None,
        description="PersistentVolumeClaim that keeps downloaded models for later pods. Default: every pod downloads. "
        "Cluster only.",
    )
    lora: Lora = Field(default=Lora.model_construct(), description="LoRA adapter.")

    cel = (
        *(
            Rule(f"self.{to_snake(field)} is None or {_IS_ID}", field, NOT_FETCHED)
            for field in ("revision", "tokenSecretRef")
        ),
        Rule(f"self.cache is None or {_IS_ID} or {_IN_STORE}", "cache", NOT_CACHED),
        Rule("not self.base.startswith('~')", "base", NO_HOME),
        Rule(
            f"not contains(self.base, '://') or {_IN_STORE}",
            "base",
            NO_URL,
            f"{{self.base}} is not supported: {NO_URL}",
        ),
    )

    @property
    def base_is_folder(self) -> bool:
        """Whether `base` names a folder, which needs no download."""
        return not self.base_is_id and not self.base_in_store

    @property
    def base_is_id(self) -> bool:
        """Whether `base` is a model id of the Hugging Face hub."""
        return MODEL_ID.match(self.base) is not None

    @property
    def base_in_store(self) -> bool:
        """Whether `base` is a folder in an S3-compatible store."""
        return is_in_store(self.base)
