"""Cache of the specs of recently reconciled jobs: each generation is validated, checked and rendered once.

Passes over a starting job follow each other closely. A parsed spec takes several times the memory of everything else
that is cached for a job, so the cache keeps only the most recent specs.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from omni_operator.api.base import FieldPath
from omni_operator.api.job import DiffusionRLJob
from omni_operator.api.names import RENDERED_ANNOTATION
from omni_operator.api.validation_messages import describe_errors, format_path
from omni_operator.cluster.cache.read_fields import REFUSED
from omni_operator.cluster.kinds import Body, Key, Kind, kind_of
from omni_operator.plan import (
    ClusterSettings,
    describe_refusals,
    digest_attempt,
    digest_spec,
    render_attempt,
    render_group,
    render_job_objects,
)
from omni_operator.status.observed.observation import ObservedRayJob

REPAIRS = 8  # times that fields are removed until the others are valid
KEPT = 64  # several times the passes that run at the same time


class ValidSpec:
    """A job with a valid specification, and what passes derive from it."""

    def __init__(self, job: DiffusionRLJob, settings: ClusterSettings) -> None:
        self.job = job
        self._settings = settings
        self._digests: dict[int, str] = {}

    @cached_property
    def refused(self) -> str | None:
        """Why the operator starts no attempt of the job; None if it does."""
        return describe_refusals(self.job, self._settings)

    @cached_property
    def shared(self) -> list[tuple[Kind, Body]]:
        """Objects that all attempts share."""
        return [(kind_of(body), body) for body in render_job_objects(self.job, self._settings)]

    def attempt(self, number: int) -> Body:
        """The RayJob of an attempt."""
        body = render_attempt(self.job, number, self._settings)
        self._digests[number] = body["metadata"]["annotations"][RENDERED_ANNOTATION]
        return body

    def group(self, name: str, number: int) -> Body:
        """A worker group of an attempt."""
        return render_group(self.job, name, number, self._settings)

    def makes(self, rayjob: ObservedRayJob) -> bool:
        """Whether an attempt is what the specification makes, but for what may change while it runs.

        Another version of the operator, or of its settings, may render the same specification otherwise.
        """
        return self.has_rendered(rayjob) or rayjob.made_of == self._made_of

    def has_rendered(self, rayjob: ObservedRayJob) -> bool:
        """Whether this operator renders an attempt from the specification, but for what may change while it runs."""
        number = rayjob.attempt
        if number not in self._digests:
            self._digests[number] = digest_attempt(self.job, number, self._settings)
        return rayjob.digest == self._digests[number]

    @cached_property
    def _made_of(self) -> str:
        """Hash of the spec fields that determine an attempt's pods."""
        return digest_spec(self.job)


@dataclass(frozen=True, slots=True)
class InvalidSpec:
    """A specification that this version of the operator refuses. No attempt starts with it; one may run.

    Attributes:
        refused: its errors, each with its field.
        job: the job without the invalid fields, for what becomes of its attempt; None if too little is left of it.
    """

    refused: str
    job: DiffusionRLJob | None = None


@dataclass(slots=True)
class SpecCache:
    """Specifications of the last jobs, valid or not."""

    _specs: OrderedDict[Key, tuple[object, ValidSpec | InvalidSpec]] = field(default_factory=OrderedDict)

    def get(self, key: Key, body: Body, settings: ClusterSettings) -> ValidSpec | InvalidSpec:
        """The specification of a job."""
        meta = body["metadata"]
        # Labels and annotations are part of a job without being part of its generation.
        identity = (settings, *(meta.get(name) for name in ("uid", "generation", "labels", "annotations")))
        known = self._specs.get(key)
        if known is None or known[0] != identity:
            if REFUSED in body:
                self.forget(key)
                return InvalidSpec(body[REFUSED])
            known = (identity, _parse(body, settings))
        self._specs[key] = known
        self._specs.move_to_end(key)
        if len(self._specs) > KEPT:
            self._specs.popitem(last=False)
        return known[1]

    def forget(self, key: Key) -> None:
        """Drop the specification of a job that does not exist any more."""
        self._specs.pop(key, None)


def _parse(body: Body, settings: ClusterSettings) -> ValidSpec | InvalidSpec:
    try:
        return ValidSpec(DiffusionRLJob.model_validate({**body, "status": {}}), settings)
    except ValidationError as error:
        problems = list(describe_errors(error, DiffusionRLJob))
    text = "; ".join(f"{format_path(at)}: {problem}" for at, problem in problems)
    return InvalidSpec(text, _without_invalid(body, [at for at, _ in problems]))


def _without_invalid(body: Body, invalid: Sequence[FieldPath]) -> DiffusionRLJob | None:
    """The job without invalid fields, or without what has them; None if a field is left that it needs."""
    remaining = {**copy.deepcopy(body), "status": {}}
    for _ in range(REPAIRS):
        # From the end of each list on, so that no index changes before it is used.
        removed = [_remove(remaining, at) for at in sorted(set(invalid), key=_in_order, reverse=True)]
        if not any(removed):
            return None
        try:
            return DiffusionRLJob.model_validate(remaining)
        except ValidationError as error:
            invalid = [at for at, _ in describe_errors(error, DiffusionRLJob)]
    return None


def _in_order(at: FieldPath) -> list[str]:
    """A key that orders paths as their places in the document: index 10 comes after 9."""
    return [f"{step:09}" if isinstance(step, int) else step for step in at]


def _remove(rest: Body, at: FieldPath) -> bool:
    """Remove what is at a path, or the innermost part of the spec around it. Returns whether there is any."""
    inside: Any = rest
    removed: list[tuple[Any, str | int]] = []
    for step in at:
        if not (
            step in inside if isinstance(inside, dict) else isinstance(inside, list) and step in range(len(inside))
        ):
            break
        removed.append((inside, step))
        inside = inside[step]
    if len(removed) < 2 or removed[0][1] != "spec":
        return False
    parent, step = removed[-1]
    del parent[step]
    return True
