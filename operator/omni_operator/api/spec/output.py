"""`spec.storage`, `spec.output`: access to object stores and the hub, and where results are sent."""

import re
from typing import Annotated

from pydantic import Field, StringConstraints

from omni_operator.api.base import ObjectName, Rule, StrictModel
from verl_omni.settings_schema.layout import default_of

FOLDER_URL = "file://"
HUB_URL = "hf://"
S3_PREFIX = "s3://"
# The hub refuses names with two dots or hyphens in a row.
_HUB_NAME = r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*"
OUTPUT_URL = re.compile(
    r"^(s3://[A-Za-z0-9][A-Za-z0-9._-]*(/.*)?|file:///[^/].*|"
    rf"hf://{_HUB_NAME}/{_HUB_NAME}(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?)$"
)
BAD_OUTPUT = (
    "write s3://BUCKET/PREFIX, hf://OWNER/NAME for a model repository of the Hugging Face hub, or file:///FOLDER for "
    "a folder"
)
NO_MODEL_REPOSITORY = re.compile(r"^hf://(buckets|datasets|kernels|models|spaces)/")
ONLY_MODELS = "results are sent to model repositories only: write hf://OWNER/NAME"
CLAIM_NEEDS_FOLDER = "has no effect unless spec.output.url is file:///FOLDER, where the claim is mounted"
Endpoint = Annotated[
    str, StringConstraints(max_length=1024, pattern=r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._/-]*)?$")
]


UNUSED_STORE = (
    "has no effect: no s3:// URL in spec.data, spec.model.base or spec.output.url, and no hf:// one; remove it"
)
NO_REGION = "has no effect: only S3-compatible stores have regions, and there is no s3:// URL; remove it"
_USES_S3 = (
    "(self.model.base.startswith('s3://') or (self.output is not None and self.output.url.startswith('s3://')) or "
    "any(path.startswith('s3://') for path in self.data.train) or "
    "(self.data.validation is not None and any(path.startswith('s3://') for path in self.data.validation)))"
)
_USES_HUB = "(self.output is not None and self.output.url.startswith('hf://'))"
STORAGE_RULES = (  # evaluated on the spec
    Rule(
        "(self.storage.endpoint is None and self.storage.region is None and self.storage.secret_name is None) or "
        f"{_USES_S3} or {_USES_HUB}",
        "storage",
        UNUSED_STORE,
    ),
    Rule(f"self.storage.region is None or {_USES_S3} or not {_USES_HUB}", "storage.region", NO_REGION),
)


class Storage(StrictModel):
    """Access to S3-compatible stores, for the s3:// URLs of data, model and output, and to the Hugging Face hub, for
    an output of hf://.
    """

    endpoint: Endpoint | None = Field(
        default=None,
        description="URL of an S3-compatible server, e.g. http://minio.store:9000, or with an output of hf://, of a "
        "hub. Default: AWS, or https://huggingface.co.",
    )
    region: Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z0-9-]+$")] | None = Field(
        default=None, description="Region. Default: AWS_REGION of the pod, else us-east-1."
    )
    secret_name: ObjectName | None = Field(
        default=None,
        description="Secret with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if "
        "needed; with an output of hf://, with the key HF_TOKEN, and then required. Default: none; the pods' identity, "
        "e.g. of their service account. Cluster only: a local run takes the variables of these names.",
    )


class Output(StrictModel):
    """Where the trainer sends adapter, report and samples, after each checkpoint and at the end."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f?#]+$")] = Field(
        description="s3://BUCKET/PREFIX, hf://OWNER/NAME for a model repository of the Hugging Face hub, which is "
        "created if it is missing, and then private, or file:///FOLDER. Results are in a folder with the name of the "
        "job there."
    )
    claim_name: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim that is mounted at the folder of a file:// URL. Cluster only."
    )
    deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        default=default_of("trainer.output.deadline_s"),
        description="Seconds that sending may take, with retries. After it, a checkpoint's results give a warning, and "
        "final results fail the attempt; they stay in the run folder.",
    )

    cel = (
        Rule(f"matches(self.url, {OUTPUT_URL.pattern!r})", "url", BAD_OUTPUT),
        Rule(f"not matches(self.url, {NO_MODEL_REPOSITORY.pattern!r})", "url", ONLY_MODELS),
        Rule(
            f"self.claim_name is None or self.url.startswith('{FOLDER_URL}')",
            "claimName",
            CLAIM_NEEDS_FOLDER,
        ),
    )

    @property
    def folder(self) -> str | None:
        """The path of a file:// URL."""
        return self.url.removeprefix(FOLDER_URL).rstrip("/") if self.url.startswith(FOLDER_URL) else None

    @property
    def in_s3(self) -> bool:
        """Whether results are sent to an S3-compatible store."""
        return self.url.startswith(S3_PREFIX)

    @property
    def in_hub(self) -> bool:
        """Whether results are sent to a repository of the Hugging Face hub."""
        return self.url.startswith(HUB_URL)
