"""`spec.reward`: how images are scored."""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, ValidationError, WithJsonSchema
from typing_extensions import override

from omni_operator.api.base import Key, Line, NullFree, Rule, StrictModel, Violation
from omni_operator.api.suggestions import did_you_mean
from omni_operator.api.validation_messages import describe_errors
from verl_omni.reward_loop.rewards import UNAVAILABLE, get_scorer
from verl_omni.reward_loop.scorer_signature import ScorerNotLoaded, setting_fields
from verl_omni.reward_loop.setting_types import COMBINED, OWN_SETTINGS, SERVER_URL, Attempts, Backoff, Seconds
from verl_omni.settings_schema.layout import default_of

from .judge import JudgeModel
from .scorer_pool import ScorerPool
from .scorers import (
    asks_judge,
    asks_server,
    builtin_scorers,
    function_problems,
    is_builtin,
    setting_paths,
    setting_violations,
    settings_model,
)

SERVER = {name: default for name, (_, default) in setting_fields(get_scorer("http")).items()}
RESERVED_SETTINGS = frozenset({*OWN_SETTINGS, "url", "timeout", "attempts"})
NO_REWARD = "must not be given with use Evaluation, whose scores are in no reward; remove it"
NO_SCORER = "has no effect without a scorer with use Evaluation; remove it, or add one"
NOTHING_TRAINED = "all weights are 0, so there is no reward; give one scorer with use Training a weight above 0"
NO_JUDGE = "must be given: the judge's URL up to and with /v1; or give spec.reward.model, a judge that the job serves"
POOLED_NAME = (
    "must have at most 40 letters and end with a letter or digit, because names of the pool's pods contain it; give "
    "the scorer another name, and add builtin"
)
SERVED = "must not be given for a scorer that asks a server, which has the model; remove it"
DEVICE_OF_POOL = "must not be given with pool, whose accelerator says where the model runs; remove it"
NO_URL = "write the path of a Python file, or pkg://module"


def _check_setting(value: JsonValue) -> JsonValue:
    """Refuse values that the trainer's settings cannot hold: mappings, and strings of several lines."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, (list, dict)):
            raise ValueError("a setting is a string, a number, true or false, or a list of those")
        if isinstance(item, str) and any(unicodedata.category(letter) == "Cc" for letter in item):
            raise ValueError("a string here must be one line")
    return value


Setting = Annotated[JsonValue, AfterValidator(_check_setting)]
# A CRD has no schema for values of several types: the operator checks them.
_SETTINGS = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
}


class Function(StrictModel):
    """A Python function `compute_score(data_source, solution_image, ground_truth, extra_info, **settings)`.

    With `data_sources, solution_images, ground_truths, extra_infos` it gets lists and returns a list of results; with
    `groups` too, all samples of a prompt together.
    """

    path: Line = Field(description="A Python file (relative paths start at this file's folder), or pkg://module.")
    name: Annotated[str, StringConstraints(max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="compute_score", description="Name of the function."
    )

    cel = (
        Rule(
            "self.path.startswith('pkg://') or not contains(self.path, '://')",
            "path",
            NO_URL,
            f"{{self.path}} is not supported: {NO_URL}",
        ),
    )


class Http(StrictModel):
    """A reward server: it receives an image and its prompt by POST and answers with a score."""

    url: Annotated[str, StringConstraints(max_length=2048, pattern=SERVER_URL)] = Field(
        description="The server's URL: http:// or https://, host, optional port and path, without user and password."
    )
    timeout_seconds: Seconds = SERVER["timeout"]
    attempts: Attempts = SERVER["attempts"]
    retry_backoff_seconds: Backoff = Field(
        default=SERVER["retry_backoff"],
        description="Pause before the second attempt; later ones are longer, up to 10 s.",
    )
    batched: bool = Field(
        default=False,
        description="true: a request has a list `samples` of images and prompts, and its answer a list `scores`.",
    )
    protocol: Literal["JSON", "Pickle"] = Field(
        default="JSON",
        description="JSON; or Pickle, as in the reference's HTTP scorer and deepgen_rl, for images only. "
        "Unpickling can run code, so an answer that has more than plain values and numpy's arrays is refused.",
    )


class Scorer(StrictModel):
    """One scorer: a built-in one by name, a Python function, or a reward server."""

    name: Key = Field(
        description="Name of the metric, and of the built-in scorer unless builtin, function or http is set "
        "(docs/reference/rewards.md)."
    )
    builtin: Key | None = Field(default=None, description="Name of a built-in scorer. Default: the value of name.")
    function: Function | None = Field(
        default=None,
        description="A Python function of data_source, solution_image, ground_truth, extra_info and its settings; or, "
        "to score several samples in a call, of lists: data_sources, solution_images, ground_truths, extra_infos; "
        "with groups, it gets all samples of a prompt together.",
    )
    http: Http | None = Field(default=None, description="A reward server.")
    weight: float = Field(default=1.0, ge=0, le=1e6, description="The reward is sum(weight * score) / sum(weight).")
    required: bool = Field(
        default=True,
        description="false: samples that this scorer fails for do not count in maxFailedShare. They have no reward "
        "either, unless weight is 0.",
    )
    use: Literal["Training", "Evaluation"] = Field(
        default="Training",
        description="Evaluation: it scores the held-out prompts of evaluations only. Its scores are in no reward, its "
        "failures never count, and weight and required must not be given.",
    )
    pool: ScorerPool | None = Field(
        default=None,
        description="Pods that run this scorer alone, on accelerators, with an image or a Python environment of their "
        "own. Default: the common scoring processes run it.",
    )
    settings: Annotated[dict[Key, Setting], NullFree, WithJsonSchema(_SETTINGS)] = Field(
        default_factory=dict,
        max_length=64,
        description="Further arguments of the scorer, see docs/reference/rewards.md, or of the function.",
    )

    cel = (
        Rule(
            "(self.function is None and self.builtin is None) if self.http is not None else "
            "(self.function is None or self.builtin is None)",
            "",
            "a scorer has only one of builtin, function and http",
        ),
        Rule("self.pool is None or self.http is None", "pool", SERVED),
        Rule(
            "self.pool is None or matches(self.name, '^[a-z]([a-z0-9_]{0,38}[a-z0-9])?$')",
            "name",
            POOLED_NAME,
        ),
        Rule("self.use == 'Training' or self.weight == 1.0", "weight", NO_REWARD),
        Rule("self.use == 'Training' or self.required", "required", NO_REWARD),
    )

    @property
    def is_trained(self) -> bool:
        """Whether its scores are part of the reward."""
        return self.use == "Training"

    @property
    def scorer(self) -> str:
        """The trainer's name of the scorer, unless it is a function."""
        if self.http:
            return "http_batch" if self.http.batched else "http"
        return self.builtin or self.name

    @property
    def paths(self) -> dict[str, str]:
        """Settings of a built-in scorer that are paths."""
        return {} if self.function or self.http else setting_paths(self.scorer, self.settings)

    @property
    def server_url(self) -> str | None:
        """URL of the server that it calls; None if it calls none."""
        if self.http:
            return self.http.url
        url = self.settings.get("base_url") if self.asks_judge else None
        return None if url is None else str(url)

    @property
    def asks_judge(self) -> bool:
        """Whether it is a built-in scorer that asks a vision-language model."""
        return self.function is None and self.http is None and asks_judge(self.scorer)

    @override
    def violations(self) -> Iterator[Violation]:
        yield from super().violations()
        if self.name == COMBINED:
            yield Violation(("name",), "the reward of all scorers has this name; choose another one")
        if self.pool and "device" in self.settings:
            yield Violation(("settings", "device"), DEVICE_OF_POOL)
        if self.function is None and self.http is None:
            yield from self._builtin_violations("name" if self.builtin is None else "builtin")
        elif self.http:
            for name in self.settings:
                yield Violation(("settings", name), "a reward server takes no settings; put parameters into http.url")
        elif taken := sorted(RESERVED_SETTINGS & self.settings.keys()):
            yield Violation(("settings", taken[0]), "is a field of the scorer itself; give the argument another name")

    def _builtin_violations(self, named_by: str) -> Iterator[Violation]:
        if why := UNAVAILABLE.get(self.scorer):
            yield Violation(
                (named_by,),
                f"the scorer {self.scorer} is not available: {why}; serve it yourself and add http, or add a function "
                "of your own",
            )
            return
        if not is_builtin(self.scorer):
            names = builtin_scorers()
            yield Violation(
                (named_by,),
                f"unknown scorer {self.scorer!r}; write one of {', '.join(names)}, or add function or http"
                f"{did_you_mean(self.scorer, names)}",
            )
            return
        try:
            model = settings_model(self.scorer)
        except ScorerNotLoaded as error:
            yield Violation((named_by,), f"the scorer {error}")
            return
        if self.pool and asks_server(self.scorer):
            yield Violation(("pool",), SERVED)
        for text in function_problems(self.scorer):
            yield Violation((named_by,), f"the scorer {self.scorer} cannot score: {text}")
        known = list(model.model_fields)
        for name in sorted(self.settings.keys() - set(known)):
            takes = f"has only {', '.join(known)}" if known else "has no settings"
            yield Violation(
                ("settings", name), f"unknown setting; the scorer {self.scorer!r} {takes}{did_you_mean(name, known)}"
            )
        try:
            valid = model.model_validate({name: value for name, value in self.settings.items() if name in known})
        except ValidationError as error:
            for at, text in describe_errors(error, model):
                yield Violation(("settings", *at), text)
            return
        for problem in setting_violations(self.scorer, valid):
            yield Violation(("settings", *problem.at), problem.text)


class Reward(StrictModel):
    """Scorers and the number of processes that run them."""

    replicas: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of scoring processes, spread over the pods; each has all scorers. Default: one for each "
        "engine, on at most half of the CPUs.",
    )
    max_failed_share: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of the samples of a step or an evaluation, rounded up, that may have no score: they are not "
        "trained on. With more, or without any reward, the run stops. "
        f"Default: {default_of('reward.max_failed_share')}. See docs/reference/rewards.md.",
    )
    early_stopping_patience: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Evaluations in a row, in which a scorer with use Evaluation has fallen while the trained reward "
        "has risen, after which the run ends. Default: it goes on, with the warning RewardOveroptimized.",
    )
    model: JudgeModel | None = Field(
        default=None,
        description="A vision-language judge that the job serves. Default: none. See docs/reference/rewards.md.",
    )
    scorers: Annotated[tuple[Scorer, ...], Field(strict=False)] = Field(
        min_length=1,
        max_length=32,
        description="What scores samples. With several scorers, the reward is their weighted mean.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )

    cel = (
        Rule(
            "any(scorer.use == 'Training' and scorer.weight > 0.0 for scorer in self.scorers)",
            "scorers",
            NOTHING_TRAINED,
        ),
        Rule(
            "self.early_stopping_patience is None or any(scorer.use == 'Evaluation' for scorer in self.scorers)",
            "earlyStoppingPatience",
            NO_SCORER,
        ),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        yield from super().violations()
        for name, count in Counter(scorer.name for scorer in self.scorers).items():
            if count > 1:
                yield Violation(("scorers",), f"{count} scorers are called {name!r}; names must differ")
        for index, scorer in enumerate(self.scorers):
            yield from (Violation(("scorers", index, *at), text) for at, text in self._judge_problems(scorer))

    def _judge_problems(self, scorer: Scorer) -> Iterator[tuple[tuple[str, ...], str]]:
        url = scorer.settings.get("base_url")
        model = scorer.settings.get("model")
        if not scorer.asks_judge:
            return
        if not url and self.model is None:
            yield ("settings", "base_url"), NO_JUDGE
        elif url and not model:
            yield ("settings", "model"), "must be given: the name that the server at base_url serves the model under"
        elif model and not url:
            yield ("settings", "model"), "has no effect without base_url: spec.reward.model is asked; remove it"
