"""Scorers that a published command line names, as scorers of a job."""

from __future__ import annotations

import re
from typing import Any

from omni_operator.api.scorers import BUILTIN, UNAVAILABLE

from .fields import Refusal

# A module of the reference's scorers, as a file or by name.
_REFERENCE_SCORER = re.compile(r"(?:pkg://|.*/)?verl_omni[./]utils[./]reward_score[./](?P<name>\w+?)(?:\.py)?")
RENAMED = {"latent": "latent_http"}  # beginnings of its modules' names whose scorer has another name here
# Settings that give the reference's scorer: verl_omni/trainer/reference_scorers.py has the reason.
SCORER_SETTINGS = {"pickscore": {"score_scale": 1 / 26}}
HTTP_FIELDS = {"url": "server_url", "timeoutSeconds": "timeout"}  # and the settings that they are there


def builtin_scorer(path: str) -> str | None:
    """The built-in scorer that is called like a module of the reference's scorers; None for any other path.

    Raises:
        Refusal: there is none of this name.
    """
    match = _REFERENCE_SCORER.fullmatch(path)
    if match is None:
        return None
    known = {name: name for name in (*BUILTIN, *UNAVAILABLE)} | RENAMED
    longest = max((start for start in known if match["name"].startswith(start)), key=len, default="")
    name = known.get(longest, match["name"])  # `hpsv3_reward`, `choice_reward`
    if name in BUILTIN:
        return name
    why = UNAVAILABLE.get(name, f"scorers are {', '.join(BUILTIN)}")
    raise Refusal(f"the scorer {name} is not available: {why}; write spec.reward.scorers with http, or with a function")


def is_reward_server(path: str) -> bool:
    """Whether a path is that of the reference's scorer that asks a server."""
    match = _REFERENCE_SCORER.fullmatch(path)
    return match is not None and match["name"].startswith("http")


def scorer_field(key: str, settings: dict[str, Any]) -> dict[str, Any]:
    """An entry of `spec.reward.scorers`.

    Args:
        key: its name. settings: what the script says below `reward.reward_functions.<key>`; consumed.

    Raises:
        Refusal: it is a scorer of the reference that does not exist here.
    """
    path, name = settings.pop("path", None), settings.pop("name", None)
    made: dict[str, Any] = {"name": key}
    if path and is_reward_server(str(path)):
        server = {field: settings.pop(name) for field, name in HTTP_FIELDS.items() if name in settings}
        made["http"] = {**server, "protocol": "Pickle"}
    elif path and (own := builtin_scorer(str(path))):
        made["builtin"] = own
        settings |= SCORER_SETTINGS.get(own, {})
    elif path:
        made["function"] = {"path": path, "name": name or "compute_score"}
    elif name:
        made["builtin"] = name
    made |= {field: settings.pop(field) for field in ("weight", "required") if field in settings}
    settings = {name: value for name, value in settings.items() if value is not None}
    return made | ({"settings": settings} if settings else {})
