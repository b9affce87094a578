"""Settings of the built-in scorers of `spec.reward.scorers`, read from the scorers' own signatures."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import ConfigDict, create_model

from omni_operator.api.base import StrictModel, Violation, remote_scheme
from verl_omni.reward_loop.rewards import SCORERS, conflicts, get_scorer
from verl_omni.reward_loop.scorer_signature import setting_fields, signature_of
from verl_omni.reward_loop.setting_types import FILE, FOLDER

from .model import MODEL_ID, NO_HOME

# Scorers that a job writes as fields: http, and function.
AS_FIELDS = ("http", "http_batch", "python")


def is_builtin(scorer: str) -> bool:
    """Whether a job may name the scorer alone."""
    return scorer not in AS_FIELDS and scorer in SCORERS


def builtin_scorers() -> tuple[str, ...]:
    """All scorers that a job may name alone."""
    return tuple(name for name in SCORERS if name not in AS_FIELDS)


class ScorerSettings(StrictModel):
    """Settings of a built-in scorer: the keyword arguments of its `compute_score`, under their Python names."""

    model_config = ConfigDict(alias_generator=None)


@cache
def settings_model(scorer: str) -> type[ScorerSettings]:
    """The model of a built-in scorer's settings."""
    fields: dict[str, Any] = setting_fields(get_scorer(scorer))
    return create_model(scorer, __base__=ScorerSettings, **fields)


def asks_judge(scorer: str) -> bool:
    """Whether it is a built-in scorer that asks a vision-language model."""
    return is_builtin(scorer) and "base_url" in settings_model(scorer).model_fields


def asks_server(scorer: str) -> bool:
    """Whether it is a built-in scorer that asks a server, for a score or for an answer of a model."""
    return is_builtin(scorer) and not {"base_url", "server_url"}.isdisjoint(settings_model(scorer).model_fields)


def setting_paths(scorer: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The settings among `given` that are paths of files or folders."""
    paths = {}
    for name, info in settings_model(scorer).model_fields.items():
        if given.get(name) is None:
            continue
        value = str(given[name])
        if FILE in info.metadata or (FOLDER in info.metadata and not MODEL_ID.match(value)):
            paths[name] = value
    return paths


def function_problems(scorer: str) -> list[str]:
    """Why a built-in scorer cannot score, whatever its settings are; only one of an installed package may be wrong."""
    return signature_of(get_scorer(scorer)).function_problems()


def setting_violations(scorer: str, given: ScorerSettings) -> Iterator[Violation]:
    """Valid settings that do not fit together, and paths that do not exist on other machines."""
    for name, path in setting_paths(scorer, given.model_dump()).items():
        if path.startswith("~"):
            yield Violation((name,), NO_HOME)
        elif scheme := remote_scheme(path):
            yield Violation((name,), f"{scheme}:// is not supported: write a path")
    for problem in conflicts(scorer, given.model_dump()):
        name, _, text = problem.partition(": ")
        yield Violation((name,), text)
