"""`spec.data`: files of prompts."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from omni_operator.api.base import S3_URL, Cel, Line, StrictModel, Violation, is_in_store, remote_scheme

Files = Annotated[tuple[Line, ...], Field(strict=False)]
NO_URL = "the trainer reads files, and s3://BUCKET/KEY; copy the file to a folder or mount it, and write its path"
_READABLE = f"!p.contains('://') || p.matches(r'{S3_URL.pattern}')"


class Data(StrictModel):
    """Files of prompts (.jsonl, .json, .parquet, or .txt with a prompt a line), one prompt per row: paths, or s3://BUCKET/KEY.

    Relative paths start at this file's folder.
    """

    train: Files = Field(min_length=1, max_length=256, description="Prompts to train on.")
    validation: Files = Field(
        default=(), max_length=256, description="Held-out prompts for evaluation. Default: no evaluation."
    )
    prompt_length: int = Field(default=77, ge=1, le=8192, description="Maximum prompt length in tokens.")

    cel = (
        Cel(f"self.train.all(p, {_READABLE})", NO_URL, ".train"),
        Cel(f"!has(self.validation) || self.validation.all(p, {_READABLE})", NO_URL, ".validation"),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        for name, files in (("train", self.train), ("validation", self.validation)):
            for place, path in enumerate(files):
                if (scheme := remote_scheme(path)) and not is_in_store(path):
                    yield Violation((name, place), f"{scheme}:// is not supported: {NO_URL}")
