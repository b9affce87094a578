"""`metadata` of a job, as the operator reads it."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from .base import RULE, Violation, whole, without_nulls
from .labels import find_bad_annotations, find_bad_labels

NAME_LIMIT = 43  # less than 63, because names of attempts and pods add suffixes
DNS_1035 = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


def _null_is_empty(value: Any) -> Any:
    return {name: "" if item is None else item for name, item in value.items()} if isinstance(value, dict) else value


# Unlike in a spec, null in labels and annotations is an empty string to the API server.
Entries = Annotated[dict[str, str], BeforeValidator(_null_is_empty)]
Integer = Annotated[int, BeforeValidator(whole), Field(ge=-(2**63), lt=2**63)]


class Metadata(BaseModel):
    """Name, labels and annotations; other metadata that a cluster adds is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)

    name: Annotated[str, StringConstraints(max_length=NAME_LIMIT, pattern=DNS_1035)] = Field(
        description=f"Lower-case letters, digits and '-', a letter first, at most {NAME_LIMIT} characters."
    )
    namespace: str | None = Field(default=None, description="Namespace. Cluster only.")
    labels: Entries = Field(default_factory=dict, description="Labels. Cluster only.")
    annotations: Entries = Field(default_factory=dict, description="Annotations. Cluster only.")
    uid: str | None = Field(default=None, description="Set by the cluster.")
    generation: Integer = Field(default=0, description="Number of changes to the spec; set by the cluster.")
    resource_version: str | None = Field(default=None, alias="resourceVersion", description="Set by the cluster.")
    creation_timestamp: str | None = Field(default=None, alias="creationTimestamp", description="Set by the cluster.")
    deletion_timestamp: str | None = Field(default=None, alias="deletionTimestamp", description="Set by the cluster.")
    finalizers: Annotated[tuple[str, ...], Field(strict=False)] = Field(default=(), description="Set on a cluster.")

    @model_validator(mode="after")
    def _labels_are_labels(self) -> Self:
        parts = (("labels", find_bad_labels(self.labels)), ("annotations", find_bad_annotations(self.annotations)))
        if violations := [Violation((name, *bad.at), bad.text) for name, many in parts for bad in many]:
            raise PydanticCustomError(RULE, "malformed labels", {"violations": violations})
        return self

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return without_nulls(value)
