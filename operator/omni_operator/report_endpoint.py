"""HTTP endpoint for progress reports of trainers.

`POST /v1/reports` with a service account token whose audience names the job; tokens with another audience, such as the
API server's, are rejected. A TokenReview returns the identity: it must be a service account of the job's namespace, and
a token bound to a pod must belong to one of the job's pods. The answer `{"checkpoint": true}` requests a checkpoint.
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
MAX_TOKENS = 4096
TOKEN_LIFETIME = timedelta(seconds=60)
log = logging.getLogger(__name__)


_PATTERN = re.escape(report_audience("NAMESPACE", "JOB"))
_AUDIENCE = re.compile(
    _PATTERN.replace("NAMESPACE", r"(?P<namespace>[a-z0-9][-a-z0-9]*)").replace("JOB", r"(?P<job>[a-z][-a-z0-9]*)")
)


def job_of(token: str) -> Key | None:
    """The job that a token's audience names; None without one, or if it is not a token.

    The token is not verified here: a TokenReview checks it for this audience.
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
    """The newest report of every job, and requests for its trainer."""

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
        """Store an event and return the answer. Events of earlier attempts are ignored."""
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
    """The token does not allow reports about this job."""


@dataclass(slots=True)
class ReportAuthorizer:
    """Checks whether a token may report about a job; results are cached, so steps need no TokenReview."""

    cluster: Cluster
    cache: ObjectCache
    clock: Callable[[], datetime]
    _known: OrderedDict[str, tuple[datetime, Identity | None]] = field(default_factory=OrderedDict)

    async def authorize(self, key: Key, token: str) -> None:
        """Check a token.

        Raises:
            ReportDenied: the token does not allow it.
            ClusterError: the TokenReview failed.
        """
        identity = await self._identify(token, report_audience(*key))
        if identity is None:
            raise ReportDenied(f"the token is not valid for the audience {report_audience(*key)}")
        if not identity.user.startswith(f"system:serviceaccount:{key[0]}:"):
            raise ReportDenied(f"{identity.user} is not a service account of namespace {key[0]}")
        pods = self.cache.pod_names(key)
        if identity.pod and pods and identity.pod not in pods:
            raise ReportDenied(f"pod {identity.pod} does not belong to job {key[1]}")

    async def _identify(self, token: str, audience: str) -> Identity | None:
        name = hashlib.sha256(f"{audience}\n{token}".encode()).hexdigest()
        now = self.clock()
        if name in self._known and now < self._known[name][0]:
            return self._known[name][1]
        identity = await self.cluster.review_token(token, audience)
        self._known[name] = (now + TOKEN_LIFETIME, identity)
        self._known.move_to_end(name)
        while len(self._known) > MAX_TOKENS:
            self._known.popitem(last=False)
        return identity


@dataclass(frozen=True, slots=True)
class ReportEndpoint:
    """HTTP routes of reports.

    Attributes:
        wake: called with the job after every report.
        counted: called with the result of every request, for metrics.
    """

    reports: ReportStore
    authorizer: ReportAuthorizer
    cache: ObjectCache
    clock: Callable[[], datetime]
    wake: Callable[[Key], None]
    counted: Callable[[str], None]

    def routes(self) -> list[web.RouteDef]:
        return [web.post(REPORTS_PATH, self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        key = job_of(token.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            return self._answer(
                401, "unauthenticated", {"error": "a bearer token with the audience of a job is required"}
            )
        try:
            await self.authorizer.authorize(key, token.strip())
        except ReportDenied as error:
            return self._answer(403, "denied", {"error": str(error)})
        except ClusterError as error:
            log.warning("%s/%s: a report cannot be authorized: %s", *key, error)
            return self._answer(503, "unavailable", {"error": "the token cannot be checked now; retry later"})
        if self.cache.job(key) is None:
            return self._answer(404, "unknown", {"error": f"job {key[0]}/{key[1]} does not exist"})
        try:
            body = json.loads(await request.text())
            post = parse_event(body if isinstance(body, dict) else {})
        except (ValidationError, ValueError, RecursionError) as error:
            return self._answer(400, "invalid", {"error": str(error)[:1024]})
        answer = self.reports.take(key, post, self.clock())
        self.wake(key)
        return self._answer(200, "stale" if "stale" in answer else "taken", answer)

    def _answer(self, code: int, result: str, body: dict[str, Any]) -> web.Response:
        self.counted(result)
        return web.json_response(body, status=code)
