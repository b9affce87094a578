"""`spec.reward`: what a picture is worth."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, WithJsonSchema
from typing_extensions import override

from .base import Cel, Line, StrictModel, Violation
from .suggestions import did_you_mean

BUILTIN = ("brightness", "color", "jpeg", "shapes")
# A scorer's name is a key of the trainer's settings and a part of a metric's name.
Key = Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z][a-z0-9_]*$")]
OWN = frozenset({"name", "path", "weight", "required", "url", "timeout", "attempts"})


def _checked(value: JsonValue) -> JsonValue:
    """Refuse what the trainer's settings cannot carry: mappings, and texts of several lines."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, (list, dict)):
            raise ValueError("a setting is a text, a number, true or false, or a list of those")
        if isinstance(item, str) and any(unicodedata.category(letter) == "Cc" for letter in item):
            raise ValueError("a setting's text has one line")
    return value


Setting = Annotated[JsonValue, AfterValidator(_checked)]
# Values of several types have no schema of their own in a CRD: what they may be, the operator checks.
_SETTINGS = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
}


# A host, a port that exists, and whatever follows: the host's port is opened in a NetworkPolicy. No user and password.
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_URL = rf"^https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:({_PORT}))?([/?#][^\s\x00-\x1f]*)?$"


class Function(StrictModel):
    """A Python function `compute_score(data_source, solution_image, ground_truth, extra_info, **settings)`."""

    path: Line = Field(description="A Python file (relative paths start at this file's folder), or pkg://module.")
    name: Annotated[str, StringConstraints(max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="compute_score", description="Name of the function."
    )


class Http(StrictModel):
    """A reward server that is POSTed the picture and its prompt and answers JSON with a number `score`."""

    url: Annotated[str, StringConstraints(max_length=2048, pattern=_URL)] = Field(description="Where to POST.")
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600, description="For one attempt.")
    attempts: int = Field(default=3, ge=1, le=100, description="Tries while the server is away or busy.")


class Scorer(StrictModel):
    """One scorer: one of the project's by name, a function of yours, or a server."""

    name: Key = Field(
        description=f"Names the metric, and the scorer unless builtin, function or http says it: {', '.join(BUILTIN)}."
    )
    builtin: Key | None = Field(default=None, description="One of the project's scorers. Default: the one called name.")
    function: Function | None = Field(default=None, description="A Python function.")
    http: Http | None = Field(default=None, description="A reward server.")
    weight: float = Field(default=1.0, ge=0, le=1e6, description="The reward is sum(weight * score) / sum(weight).")
    required: bool = Field(default=True, description="Stop the run when this scorer fails. false: it counts 0 then.")
    settings: Annotated[dict[Key, Setting], WithJsonSchema(_SETTINGS)] = Field(
        default_factory=dict, max_length=64, description="Further arguments of the scorer."
    )

    cel = (
        Cel(
            "[has(self.builtin), has(self.function), has(self.http)].filter(given, given).size() <= 1",
            "a scorer is one thing: builtin, function or http",
        ),
        Cel(
            "has(self.function) || has(self.http) || "
            f"(has(self.builtin) ? self.builtin : self.name) in {list(BUILTIN)}",
            f"name: one of {', '.join(BUILTIN)}, or add builtin, function or http",
        ),
    )

    @property
    def scorer(self) -> str:
        """Name of the project's scorer, where it is one."""
        return "http" if self.http else self.builtin or self.name

    @override
    def violations(self) -> Iterator[Violation]:
        given = [name for name in ("builtin", "function", "http") if getattr(self, name) is not None]
        if len(given) > 1:
            yield Violation((given[1],), f"a scorer is one thing: remove all but one of {', '.join(given)}")
        if (not given or given == ["builtin"]) and self.scorer not in BUILTIN:
            yield Violation(
                ("builtin" if given else "name",),
                f"there is no scorer {self.scorer!r}; one of {', '.join(BUILTIN)}, or add function or http"
                f"{did_you_mean(self.scorer, BUILTIN)}",
            )
        if taken := sorted(OWN & self.settings.keys()):
            yield Violation(("settings", taken[0]), "is a field of the scorer itself, not one of its settings")


class Reward(StrictModel):
    """Scorers and how many processes run them."""

    replicas: int = Field(default=1, ge=1, le=1024, description="Processes that score.")
    scorers: Annotated[tuple[Scorer, ...], Field(strict=False)] = Field(
        min_length=1,
        max_length=32,
        description="With several, the reward is the weighted mean.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )

    cel = (
        Cel("self.scorers.exists(scorer, scorer.weight > 0.0)", "scorers: all weights are 0: no reward", ".scorers"),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        for name, count in Counter(scorer.name for scorer in self.scorers).items():
            if count > 1:
                yield Violation(("scorers",), f"{count} scorers are called {name!r}; names must differ")
        if not sum(scorer.weight for scorer in self.scorers):
            yield Violation(("scorers",), "all weights are 0, so there is no reward")
