"""Scorers that a published command line names, as scorers of a job."""

from __future__ import annotations

import re
from typing import Any

from omni_operator.api.spec.scorers import UNAVAILABLE

from .fields import Refusal, number

# A module of the reference's scorers, as a file or by name.
_REFERENCE_SCORER = re.compile(
    r"(?P<package>pkg://)?(?:.*/)?verl_omni[./]utils[./]reward_score[./](?P<module>\w+?)(?:\.py)?"
)
# The published modules: the scorer here, and its function there.
PUBLISHED = {
    "choice_reward": ("choice", "compute_score"),
    "clap": ("clap", "compute_score"),
    "genrm_ocr": ("genrm_ocr", "compute_score_ocr"),
    "hpsv3_reward": ("hpsv3", "compute_score"),
    "http_scorer_client": ("http", "compute_score"),
    "imagebind": ("imagebind", "compute_score"),
    "jpeg_compressibility": ("jpeg_compressibility", "compute_score"),
    "latent_http": ("latent_http", "compute_score"),
    "latent_http_scorer_client": ("latent_http", "compute_score"),
    "pickscore_reward": ("pickscore", "compute_score_pickscore"),
    "unified_reward": ("unified_reward", "compute_score_unified_reward"),
}
# Settings that give the reference's scorer: verl_omni/trainer/settings/reference_modules.py has the reason.
SCORER_SETTINGS = {"pickscore": {"score_scale": 1 / 26}}
RENAMED = {"hpsv3": {"reward_scale": "score_scale"}}  # settings that have another name here
# Fields of a reward server, and the settings that they are there.
HTTP_FIELDS = {"url": "server_url", "timeoutSeconds": "timeout", "retryBackoffSeconds": "retry_backoff"}
RETRIES = "max_retries"  # attempts after the first


def published_scorer(path: str, function: Any = None) -> str | None:
    """The scorer here of a published module; None for any other path.

    A file with a published name is a user's own if another function of it is called.

    Args:
        function: the name of the function, if it is given.

    Raises:
        Refusal: there is no such module, or its scorer does not exist here.
    """
    match = _REFERENCE_SCORER.fullmatch(path)
    if match is None:
        return None
    if (published := PUBLISHED.get(match["module"])) is None:
        if match["package"] is None:
            return None
        raise Refusal(f"{path} does not exist; the reference's modules of scorers are {', '.join(PUBLISHED)}")
    scorer, own_function = published
    if match["package"] is None and function not in (None, own_function):
        return None
    if why := UNAVAILABLE.get(scorer):
        raise Refusal(
            f"the scorer {scorer} is not available: {why}; write spec.reward.scorers with http, or with a function"
        )
    return scorer


def scorer_settings(scorer: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings here of a published scorer."""
    renamed = RENAMED.get(scorer, {})
    return SCORER_SETTINGS.get(scorer, {}) | {renamed.get(name, name): value for name, value in settings.items()}


def scorer_field(key: str, settings: dict[str, Any]) -> dict[str, Any]:
    """An entry of `spec.reward.scorers`.

    Args:
        key: its name. settings: what the script says below `reward.reward_functions.<key>`; consumed.

    Raises:
        Refusal: it is a scorer of the reference that does not exist here.
    """
    path = settings.pop("path", None)
    name = settings.pop("name", None)
    made: dict[str, Any] = {"name": key}
    published = published_scorer(str(path), name) if path else None
    if published == "http":
        server = {field: settings.pop(name) for field, name in HTTP_FIELDS.items() if name in settings}
        if (retries := settings.pop(RETRIES, None)) is not None:
            server["attempts"] = number(retries) + 1
        made["http"] = {**server, "protocol": "Pickle"}
    elif published:
        made["builtin"] = published
        settings = scorer_settings(published, settings)
    elif path:
        made["function"] = {"path": path, "name": name or "compute_score"}
    elif name:
        made["builtin"] = name
    made |= {field: settings.pop(field) for field in ("weight", "required") if field in settings}
    settings = {name: value for name, value in settings.items() if value is not None}
    return made | ({"settings": settings} if settings else {})
