"""`spec.data`: prompts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Line, StrictModel

Files = Annotated[tuple[Line, ...], Field(strict=False)]


class Data(StrictModel):
    """Files of prompts (.jsonl, .json or .parquet) with a row a prompt; relative paths start at this file's folder."""

    train: Files = Field(min_length=1, max_length=256, description="Prompts to train on.")
    validation: Files = Field(
        default=(), max_length=256, description="Held-out prompts for the evaluations. None: no evaluation."
    )
    prompt_length: int = Field(default=77, ge=1, le=8192, description="Tokens of the longest prompt.")
