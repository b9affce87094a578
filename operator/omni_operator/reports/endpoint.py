"""HTTP endpoint for progress reports of trainers.

`POST /v1/reports` with a service account token whose audience names the job; tokens with another audience, such as the
API server's, are rejected. The token must be bound to one of the job's pods: a report counts for the attempt of that
pod, whatever it says. The answer `{"checkpoint": true}` requests a checkpoint.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aiohttp import web

from omni_operator.api.names import REPORTS_PATH
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.kinds import Key
from omni_operator.reports.authorizer import ReportAuthorizer, ReportDenied, TooManyRejected, read_claims
from omni_operator.reports.rate_limiter import RateLimiter
from omni_operator.reports.relay import RELAYED_HEADER, ReportRelay
from omni_operator.status.observed.observation import TrainerReport
from omni_operator.status.observed.trainer_report import ReportEvent, merge_event, parse_event

BODY_LIMIT = 64 * 1024
RETRY_AFTER = {429: "10", 503: "1"}  # seconds
# reports of one job
POSTS_BURST = 100
POSTS_PER_SECOND = 10.0
log = logging.getLogger(__name__)


class ReportStore:
    """The newest report of every job, and requests for its trainer."""

    def __init__(self) -> None:
        self._newest: dict[Key, tuple[str, TrainerReport]] = {}
        self._asked: dict[Key, datetime] = {}

    def newest(self, key: Key, uid: str) -> TrainerReport | None:
        """The newest report of the job with this uid."""
        stored = self._newest.get(key)
        return stored[1] if stored and stored[0] == uid else None

    def clear(self) -> None:
        """Drop everything, because another process has taken reports since."""
        self._newest.clear()
        self._asked.clear()

    def ask_checkpoint(self, key: Key, since: datetime) -> None:
        self._asked[key] = since

    def forget(self, key: Key) -> None:
        self._newest.pop(key, None)
        self._asked.pop(key, None)

    def take(self, key: Key, uid: str, attempt: int, event: ReportEvent, now: datetime) -> dict[str, Any]:
        """Store an event of an attempt and return the answer. Events of earlier attempts are ignored."""
        before = self.newest(key, uid)
        if before is not None and attempt < before.attempt:
            return {"stale": True}
        report = merge_event(before, event, attempt, now)
        self._newest[key] = uid, report
        asked = self._asked.get(key)
        if asked and report.checkpoint_at and report.checkpoint_at >= asked:
            del self._asked[key]
            asked = None
        return {"checkpoint": True} if asked else {}


@dataclass(slots=True)
class ReportEndpoint:
    """HTTP routes of reports.

    Attributes:
        wake: called with the job after every report.
        counted: called with the result of every request, for metrics.
        relay: to the replica that leads; None: this is the only one.
        body_seconds: time for a body to arrive.
    """

    reports: ReportStore
    authorizer: ReportAuthorizer
    cache: ObjectCache
    clock: Callable[[], datetime]
    wake: Callable[[Key], None]
    counted: Callable[[str], None]
    relay: ReportRelay | None = None
    body_seconds: float = 10.0
    _posts: RateLimiter = field(init=False)

    def __post_init__(self) -> None:
        self._posts = RateLimiter(POSTS_PER_SECOND, POSTS_BURST, self.clock)

    def routes(self) -> list[web.RouteDef]:
        return [web.post(REPORTS_PATH, self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        claims = read_claims(token) if scheme.lower() == "bearer" else None
        if claims is None:
            return self._refuse(401, "unauthenticated", "a bearer token with the audience of a job is required")
        key = claims.key
        uid = self.cache.uid(key)
        if uid is None:
            return self._unknown(key)
        try:
            attempt = await self.authorizer.authorize(token, claims, uid, request.remote)
        except ReportDenied as error:
            return self._refuse(403, "denied", str(error))
        except TooManyRejected:
            return self._refuse(429, "limited", "too many rejected tokens from this address; retry later")
        except ClusterError as error:
            log.warning("%s/%s: a report cannot be authorized: %s", *key, error)
            return self._refuse(503, "unavailable", "the token cannot be checked now; retry later")
        if not self._posts.allows(key):
            return self._refuse(429, "limited", f"more than {POSTS_PER_SECOND:.0f} reports a second; retry later")
        self._posts.count(key)
        try:
            body = await self._read(request)
            event = parse_event(body)
        except ConnectionError:
            return self._refuse(400, "invalid", "the connection ended before the body")
        except TimeoutError:
            return self._refuse(408, "invalid", f"the body did not arrive in {self.body_seconds:g} s")
        except ValueError as error:
            return self._refuse(400, "invalid", str(error)[:1024].encode("utf-8", "replace").decode())
        if self.cache.uid(key) != uid:  # deleted meanwhile, also if another job has its name by now
            return self._unknown(key)
        if self.relay is not None and not self.relay.leads():
            return await self._pass_on(self.relay, request, token, body)
        answer = self.reports.take(key, uid, attempt, event, self.clock())
        self.wake(key)
        return self._answer(200, "stale" if "stale" in answer else "taken", answer)

    async def _pass_on(self, relay: ReportRelay, request: web.Request, token: str, body: bytes) -> web.Response:
        """Let the replica that leads answer. A report is passed on once, so two replicas cannot do so for ever."""
        answer = None if RELAYED_HEADER in request.headers else await relay.send(token, body)
        if answer is None:
            return self._refuse(503, "unavailable", "no replica of the operator takes reports now; retry later")
        self.counted("relayed")
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        return web.Response(status=answer.code, body=answer.body, content_type="application/json", headers=headers)

    async def _read(self, request: web.Request) -> bytes:
        """The body.

        Raises:
            ValueError: it is compressed, or its charset is not UTF-8.
            TimeoutError: it did not arrive in time.
        """
        if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
            raise ValueError(f"Content-Encoding {encoding!r} is not supported: send the body uncompressed")
        if (charset := request.charset or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
            raise ValueError(f"charset {charset!r} is not supported: JSON is UTF-8")
        async with asyncio.timeout(self.body_seconds):
            return await request.read()

    def _unknown(self, key: Key) -> web.Response:
        return self._refuse(404, "unknown", f"job {key[0]}/{key[1]} does not exist")

    def _refuse(self, code: int, result: str, error: str) -> web.Response:
        answer = self._answer(code, result, {"error": error})
        if code in RETRY_AFTER:
            answer.headers["Retry-After"] = RETRY_AFTER[code]
        if code == 408:
            answer.force_close()
        return answer

    def _answer(self, code: int, result: str, body: dict[str, Any]) -> web.Response:
        self.counted(result)
        return web.json_response(body, status=code)
