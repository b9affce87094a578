"""Where running jobs report progress.

`POST /v1/reports` with a service account's token whose audience is the job's own, which also says what job it is:
a token that was made for something else, such as the API server, is refused. TokenReview says whose it is; it must be a
service account of the job's namespace, and where the token is bound to a pod, one of the job's pods. The answer may
ask for something: `{"checkpoint": true}` wants a checkpoint now.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from omni_operator.api.names import REPORTS_PATH, report_audience
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.kinds import Key
from omni_operator.cluster.object_cache import ObjectCache
from omni_operator.cluster.protocol import Cluster, Identity
from omni_operator.status.observation import TrainerReport
from omni_operator.status.trainer_report import ReportEvent, is_current, merge_event, parse_event

BODY_LIMIT = 64 * 1024
TOKENS_KEPT = 4096
TOKEN_TRUSTED = timedelta(seconds=60)
log = logging.getLogger(__name__)


_PATTERN = re.escape(report_audience("NAMESPACE", "JOB"))
_AUDIENCE = re.compile(
    _PATTERN.replace("NAMESPACE", r"(?P<namespace>[a-z0-9][-a-z0-9]*)").replace("JOB", r"(?P<job>[a-z][-a-z0-9]*)")
)


def job_of(token: str) -> Key | None:
    """The job whose audience an unchecked token names; None where it names none, or is no token.

    Only the audience is read here: TokenReview then says whether the token is good for it.
    """
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audiences = claims["aud"]
    except (ValueError, KeyError, TypeError):
        return None
    for audience in audiences if isinstance(audiences, list) else [audiences]:
        if found := _AUDIENCE.fullmatch(str(audience)):
            return found["namespace"], found["job"]
    return None


class ReportStore:
    """The newest report of every job, and what its trainer is to be told."""

    def __init__(self) -> None:
        self._newest: dict[Key, TrainerReport] = {}
        self._asked: dict[Key, datetime] = {}

    def newest(self, key: Key) -> TrainerReport | None:
        return self._newest.get(key)

    def ask_checkpoint(self, key: Key, since: datetime) -> None:
        self._asked[key] = since

    def forget(self, key: Key) -> None:
        self._newest.pop(key, None)
        self._asked.pop(key, None)

    def take(self, key: Key, post: ReportEvent, now: datetime) -> dict[str, Any]:
        """Remember a post, and answer it. A post of an attempt that is over changes nothing."""
        before = self._newest.get(key)
        if not is_current(before, post):
            return {"stale": True}
        report = merge_event(before, post, now)
        self._newest[key] = report
        asked = self._asked.get(key)
        if asked and report.checkpoint_at and report.checkpoint_at >= asked:
            del self._asked[key]
            asked = None
        return {"checkpoint": True} if asked else {}


class ReportDenied(Exception):
    """The token does not entitle its bearer to report about this job."""


@dataclass(slots=True)
class ReportAuthorizer:
    """Whether a token may report about a job; answers are remembered for a while, so steps cost no TokenReview."""

    cluster: Cluster
    cache: ObjectCache
    clock: Callable[[], datetime]
    _known: OrderedDict[str, tuple[datetime, Identity | None]] = field(default_factory=OrderedDict)

    async def admit(self, key: Key, token: str) -> None:
        """Let the bearer report.

        Raises:
            ReportDenied: the token is not good for it.
            ClusterError: the API server could not say.
        """
        identity = await self._identify(token, report_audience(*key))
        if identity is None:
            raise ReportDenied("the token is not valid for this job's audience")
        if not identity.user.startswith(f"system:serviceaccount:{key[0]}:"):
            raise ReportDenied("the token is not of a service account of the job's namespace")
        pods = self.cache.pod_names(key)
        if identity.pod and pods and identity.pod not in pods:
            raise ReportDenied("the token belongs to a pod of something else")

    async def _identify(self, token: str, wanted: str) -> Identity | None:
        name = hashlib.sha256(f"{wanted}\n{token}".encode()).hexdigest()
        now = self.clock()
        if name in self._known and now < self._known[name][0]:
            return self._known[name][1]
        identity = await self.cluster.identify(token, wanted)
        self._known[name] = (now + TOKEN_TRUSTED, identity)
        self._known.move_to_end(name)
        while len(self._known) > TOKENS_KEPT:
            self._known.popitem(last=False)
        return identity


@dataclass(frozen=True, slots=True)
class ReportEndpoint:
    """The HTTP side.

    Attributes:
        heard: told the job after every report.
        counted: told the result of every request, for metrics.
    """

    reports: ReportStore
    gatekeeper: ReportAuthorizer
    cache: ObjectCache
    clock: Callable[[], datetime]
    heard: Callable[[Key], None]
    counted: Callable[[str], None]

    def routes(self) -> list[web.RouteDef]:
        return [web.post(REPORTS_PATH, self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        key = job_of(token.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            return self._answer(401, "unauthenticated", {"error": "a token with a job's audience is needed"})
        try:
            await self.gatekeeper.admit(key, token.strip())
        except ReportDenied as error:
            return self._answer(403, "denied", {"error": str(error)})
        except ClusterError as error:
            log.warning("a report of %s/%s cannot be checked: %s", *key, error)
            return self._answer(503, "unavailable", {"error": "the token cannot be checked now; try again"})
        if self.cache.job(key) is None:
            return self._answer(404, "unknown", {"error": "there is no such job"})
        try:
            body = json.loads(await request.text())
            post = parse_event(body if isinstance(body, dict) else {})
        except (ValidationError, ValueError, RecursionError) as error:
            return self._answer(400, "invalid", {"error": str(error)[:1024]})
        answer = self.reports.take(key, post, self.clock())
        self.heard(key)
        return self._answer(200, "stale" if "stale" in answer else "taken", answer)

    def _answer(self, code: int, result: str, body: dict[str, Any]) -> web.Response:
        self.counted(result)
        return web.json_response(body, status=code)
