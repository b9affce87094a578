"""Scorers that a published command line names, as scorers of a job."""

import re
from collections.abc import Mapping
from typing import Any

from verl_omni.reward_loop.published_scorers import IMPLIED, PUBLISHED, RENAMED, RETRIES
from verl_omni.reward_loop.rewards import UNAVAILABLE

from .fields import Refusal, number

# A module of the reference's scorers, as a file or by name.
_REFERENCE_SCORER = re.compile(
    r"(?P<package>pkg://)?(?:.*/)?verl_omni[./]utils[./]reward_score[./](?P<module>\w+?)(?:\.py)?"
)
POOL = "pool."  # how the names of a scorer's settings about its pool begin
# Fields of a reward server, and the settings that they are there.
HTTP_FIELDS = {"url": "server_url", "timeoutSeconds": "timeout", "retryBackoffSeconds": "retry_backoff"}


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
    if match["package"] is None and own_function is not None and function not in (None, own_function):
        return None
    if why := UNAVAILABLE.get(scorer):
        raise Refusal(
            f"the scorer {scorer} is not available: {why}; write spec.reward.scorers with http, or with a function"
        )
    return scorer


def scorer_settings(scorer: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings here of a published scorer."""
    renamed = RENAMED.get(scorer, {})
    return IMPLIED.get(scorer, {}) | {renamed.get(name, name): value for name, value in settings.items()}


def scorer_field(key: str, settings: dict[str, Any], vendor: str) -> dict[str, Any]:
    """An entry of `spec.reward.scorers`.

    Args:
        key: its name. settings: what the script says below `reward.reward_functions.<key>`; consumed.
        vendor: of the job's accelerators.

    Raises:
        Refusal: it is a scorer of the reference that does not exist here.
    """
    path = settings.pop("path", None)
    name = settings.pop("name", None)
    entry: dict[str, Any] = {"name": key}
    published = published_scorer(str(path), name) if path else None
    if published == "http":
        server = {field: settings.pop(name) for field, name in HTTP_FIELDS.items() if name in settings}
        if (retries := settings.pop(RETRIES, None)) is not None:
            server["attempts"] = number(retries) + 1
        entry["http"] = {**server, "protocol": "Pickle"}
    elif published:
        entry["builtin"] = published
        settings = scorer_settings(published, settings)
    elif path:
        entry["function"] = {"path": path, "name": name or "compute_score"}
    elif name:
        entry["builtin"] = name
    entry |= {field: settings.pop(field) for field in ("weight", "required") if field in settings}
    if settings.pop("use", None) == "evaluation":
        entry["use"] = "Evaluation"
    pool = {name.removeprefix(POOL): settings.pop(name) for name in [*settings] if name.startswith(POOL)}
    if pool:
        entry["pool"] = _pool_field(pool, vendor)
    settings = {name: value for name, value in settings.items() if value is not None}
    return entry | ({"settings": settings} if settings else {})


def _pool_field(settings: Mapping[str, Any], vendor: str) -> dict[str, Any]:
    """`spec.reward.scorers[].pool`; the operator chooses the Ray resources."""
    pool: dict[str, Any] = {"replicas": int(number(settings.get("nnodes", 1)))}
    if count := int(number(settings.get("n_gpus_per_node", 0))):
        pool["accelerator"] = {"vendor": vendor, "count": count}
    return pool | ({"python": settings["python"]} if settings.get("python") else {})
