"""`spec.storage`, `spec.output`: access to object stores, and where results are sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints
from typing_extensions import override

from .base import Cel, ObjectName, StrictModel, Violation

FOLDER_URL = "file://"
OUTPUT_URL = re.compile(r"^(s3://[A-Za-z0-9][A-Za-z0-9._-]*(/.*)?|file:///[^/].*)$")
BAD_OUTPUT = (
    "write s3://BUCKET/PREFIX, or file:///FOLDER for a folder; a repository of the Hugging Face hub is not supported "
    "yet: upload the fetched adapter with `hf upload`"
)
CLAIM_NEEDS_FOLDER = "has no effect unless spec.output.url is file:///FOLDER, where the claim is mounted"
Endpoint = Annotated[
    str, StringConstraints(max_length=1024, pattern=r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._/-]*)?$")
]


class Storage(StrictModel):
    """Access to S3-compatible stores, for the s3:// URLs of data, model and output."""

    endpoint: Endpoint | None = Field(
        default=None, description="URL of an S3-compatible server, e.g. http://minio.store:9000. Default: AWS."
    )
    region: Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z0-9-]+$")] | None = Field(
        default=None, description="Region. Default: AWS_REGION of the pod, else us-east-1."
    )
    secret_name: ObjectName | None = Field(
        default=None,
        description="Secret with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if "
        "needed. Default: none; the pods' identity, e.g. of their service account. Cluster only: a local run takes "
        "the variables of these names.",
    )


class Output(StrictModel):
    """Where the trainer sends adapter, report and samples, after each checkpoint and at the end."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f?#]+$")] = Field(
        description="s3://BUCKET/PREFIX, or file:///FOLDER. Results are in a folder with the name of the job there."
    )
    claim_name: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim that is mounted at the folder of a file:// URL. Cluster only."
    )
    deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        default=600,
        description="Seconds that sending may take, with retries. After it, a checkpoint's results give a warning, and "
        "those of the end fail the attempt; they stay in the run folder.",
    )

    cel = (
        Cel(f"self.url.matches(r'{OUTPUT_URL.pattern}')", BAD_OUTPUT, ".url"),
        Cel(f"!has(self.claimName) || self.url.startsWith('{FOLDER_URL}')", CLAIM_NEEDS_FOLDER, ".claimName"),
    )

    @property
    def folder(self) -> str | None:
        """The path of a file:// URL."""
        return self.url.removeprefix(FOLDER_URL).rstrip("/") if self.url.startswith(FOLDER_URL) else None

    @override
    def violations(self) -> Iterator[Violation]:
        if not OUTPUT_URL.search(self.url):
            yield Violation(("url",), BAD_OUTPUT)
        if self.claim_name and self.folder is None:
            yield Violation(("claimName",), CLAIM_NEEDS_FOLDER)
