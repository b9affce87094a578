"""`metadata` in the file of a job: what the API server accepts, with all fields of Kubernetes."""

import re
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from omni_operator.api.base import RULE, Violation, names_of
from omni_operator.api.labels import DOMAIN, DOMAIN_LIMIT, is_key
from omni_operator.api.metadata import Integer

EVENTS = ("v1", "Event")  # which own nothing
EXCLUSIVE = {"orphan", "foregroundDeletion"}
NO_NAME = "the API server makes a name of it (kubectl create); drl needs metadata.name"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def _check_time(text: str) -> str:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError(text)
        datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from error
    return text


def _check_finalizer(text: str) -> str:
    if not is_key(text):
        raise ValueError(f"{text!r} is not a finalizer, such as example.com/keep")
    return text


def _check_prefix(text: str) -> str:
    # The API server adds letters to it, so it may end with a hyphen, with which its check drops the character before.
    checked = f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text
    if text and (len(checked) > DOMAIN_LIMIT or not re.fullmatch(DOMAIN, checked)):
        raise ValueError(f"{text!r} is not the beginning of a name: lower-case letters, digits, '-' and '.'")
    return text


Time = Annotated[str, AfterValidator(_check_time)]
Filled = Annotated[str, StringConstraints(min_length=1)]


class KnownFields(BaseModel):
    """An object of Kubernetes in a file, without unknown fields; a null in a known one means that it is absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _known_null_is_absent(cls, value: Any) -> Any:
        if value is None:  # an item of a list
            return {}
        known = names_of(cls)
        return {n: v for n, v in value.items() if v is not None or n not in known} if isinstance(value, dict) else value


class Owner(KnownFields):
    """An owner of the job."""

    api_version: Annotated[str, StringConstraints(pattern=r"^([^/]*/)?[^/]+$")] = Field(description="As v1 or apps/v1.")
    kind: Filled = Field(description="Kind of the owner.")
    name: Filled = Field(description="Name of the owner.")
    uid: Filled = Field(description="Uid of the owner.")
    controller: bool = False
    block_owner_deletion: bool = False


class Manager(KnownFields):
    """Who wrote which fields. The API server drops what it cannot read, but not values of a wrong type."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: Time | None = None
    fields_type: str = ""
    fields_v1: Any = Field(default=None, alias="fieldsV1")
    subresource: str = ""


class FileMetadata(KnownFields):
    """Metadata of a file, with what the API server would refuse in it, besides what `Metadata` refuses.

    Not a part of `Metadata`: the operator must read jobs of a Kubernetes whose metadata has more fields.
    """

    name: Any = None
    namespace: Annotated[str, StringConstraints(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")] = Field(
        default="", description="Lower-case letters, digits and '-', at most 63."
    )
    labels: Any = None
    annotations: Any = None
    generate_name: Annotated[str, AfterValidator(_check_prefix)] = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Integer = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Integer = 0
    finalizers: Annotated[tuple[Annotated[str, AfterValidator(_check_finalizer)], ...], Field(strict=False)] = ()
    owner_references: Annotated[tuple[Owner, ...], Field(strict=False)] = ()
    managed_fields: Annotated[tuple[Manager, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _together(self) -> Self:
        found = [
            Violation(("ownerReferences", place), "an Event owns nothing")
            for place, owner in enumerate(self.owner_references)
            if (owner.api_version, owner.kind) == EVENTS
        ]
        if sum(owner.controller for owner in self.owner_references) > 1:
            found.append(Violation(("ownerReferences",), "only one of them may have controller: true"))
        if set(self.finalizers) >= EXCLUSIVE:
            found.append(Violation(("finalizers",), f"{' and '.join(sorted(EXCLUSIVE))} exclude each other"))
        if self.generate_name and self.name is None:
            found.append(Violation(("generateName",), NO_NAME))
        if found:
            raise PydanticCustomError(RULE, "broken rules of metadata", {"violations": found})
        return self
