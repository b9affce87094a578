"""`spec.data`: files of prompts."""

from typing import Annotated

from pydantic import Field

from omni_operator.api.base import S3_URL, Line, Rule, StrictModel

Files = Annotated[tuple[Line, ...], Field(strict=False)]
NO_URL = "the trainer reads files, and s3://BUCKET/KEY; copy the file to a folder or mount it, and write its path"
_READABLE = f"not contains(item, '://') or matches(item, {S3_URL.pattern!r})"


class Data(StrictModel):
    """Files of prompts (.jsonl, .json, .parquet, or .txt with a prompt a line), one prompt per row: paths, or s3://BUCKET/KEY.

    Relative paths start at this file's folder.
    """

    train: Files = Field(min_length=1, max_length=256, description="Prompts to train on.")
    validation: Files = Field(
        default=(), max_length=256, description="Held-out prompts for evaluation. Default: no evaluation."
    )
    prompt_length: int = Field(default=77, ge=1, le=8192, description="Maximum prompt length in tokens.")

    cel = tuple(
        Rule(_READABLE, name, NO_URL, f"{{item}} is not supported: {NO_URL}", each=True)
        for name in ("train", "validation")
    )
