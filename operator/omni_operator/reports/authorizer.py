"""Authorization of trainers' reports: which attempt of which job a token may report about.

A token names its job and its pod. Both are looked up in the cache before a TokenReview asks the API server whether the
token is genuine, so a forged one costs a request only if it names an existing pod of the job, and then
its sender is limited.
"""

import asyncio
import base64
import functools
import hashlib
import ipaddress
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from omni_operator.api.names import report_audience
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import Key
from omni_operator.cluster.protocol import Cluster, Identity
from omni_operator.reports.rate_limiter import RateLimiter

TOKENS_KEPT = 16_384
REJECTED_KEPT = 1024
TOKEN_LIFETIME = timedelta(seconds=60)
REJECTED_LIFETIME = timedelta(seconds=10)
# TokenReviews that reject a token, of one source
REJECTED_BURST = 5
REJECTED_PER_SECOND = 0.1
REVIEWS_AT_ONCE = 4
Value = TypeVar("Value")
_PATTERN = re.escape(report_audience("NAMESPACE", "JOB"))
_AUDIENCE = re.compile(
    _PATTERN.replace("NAMESPACE", r"(?P<namespace>[a-z0-9][-a-z0-9]*)").replace("JOB", r"(?P<job>[a-z][-a-z0-9]*)")
)


class ReportDenied(Exception):
    """The token does not allow reports about this job."""


class TooManyRejected(Exception):
    """The source has sent too many tokens that were rejected."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The job in a token's audience, and the pod that the token says it is bound to; nothing of it is verified.

    Attributes:
        pod: name and uid; None for a token that is not bound to a pod.
    """

    key: Key
    pod: tuple[str, str] | None


def read_claims(token: str) -> Claims | None:
    """The claims of a token; None if it is not a token, or its audience names no job."""
    try:
        _, payload, _ = token.encode("ascii").decode().split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audiences = claims["aud"]
        pod = (claims.get("kubernetes.io") or {}).get("pod")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    bound = (str(pod.get("name")), str(pod.get("uid"))) if isinstance(pod, dict) else None
    for audience in audiences if isinstance(audiences, list) else [audiences]:
        if audience_match := _AUDIENCE.fullmatch(str(audience)):
            return Claims((audience_match["namespace"], audience_match["job"]), bound)
    return None


@functools.lru_cache(maxsize=1024)
def source_of(address: str | None) -> str:
    """The sender that limits apply to: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


@dataclass(slots=True)
class ReportAuthorizer:
    """Checks tokens. Results are cached, so the steps of a run need no TokenReview."""

    cluster: Cluster
    cache: ObjectCache
    clock: Callable[[], datetime]
    _valid: OrderedDict[bytes, tuple[datetime, Identity]] = field(default_factory=OrderedDict)
    _rejected: OrderedDict[bytes, tuple[datetime, None]] = field(default_factory=OrderedDict)
    _reviews: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REVIEWS_AT_ONCE))
    _sources: RateLimiter = field(init=False)

    def __post_init__(self) -> None:
        self._sources = RateLimiter(REJECTED_PER_SECOND, REJECTED_BURST, self.clock)

    async def authorize(self, token: str, claims: Claims, uid: str, address: str | None) -> int:
        """Check a token for the job that its claims name, which has this uid. Return the attempt of the token's pod.

        Raises:
            ReportDenied: the token does not allow it.
            TooManyRejected: the address has sent too many tokens that were rejected.
            ClusterError: the TokenReview failed.
        """
        key = claims.key
        source = source_of(address)
        if claims.pod is None:
            raise ReportDenied("the token is not bound to a pod")
        self._attempt_of(key, uid, claims.pod)
        identity = await self._identify(token, report_audience(*key), source)
        if identity is None:
            raise ReportDenied(f"the token is not valid for the audience {report_audience(*key)}")
        if not identity.user.startswith(f"system:serviceaccount:{key[0]}:"):
            raise ReportDenied(f"{identity.user} is not a service account of namespace {key[0]}")
        return self._attempt_of(key, uid, (identity.pod, identity.pod_uid))

    def _attempt_of(self, key: Key, uid: str, pod: tuple[str, str]) -> int:
        observed = self.cache.observed(key, uid)
        for observed_pod in observed.pods:
            if (observed_pod.name, observed_pod.uid) == pod and observed.attempt(observed_pod.attempt).rayjob:
                return observed_pod.attempt
        raise ReportDenied(f"pod {pod[0][:253]} does not belong to job {key[1]}")

    async def _identify(self, token: str, audience: str, source: str) -> Identity | None:
        # A time further ahead is from before the clock was set back.
        digest = hashlib.sha256(f"{audience}\n{token}".encode()).digest()
        now = self.clock()
        if digest in self._valid and timedelta() < self._valid[digest][0] - now <= TOKEN_LIFETIME:
            return self._valid[digest][1]
        if digest in self._rejected and timedelta() < self._rejected[digest][0] - now <= REJECTED_LIFETIME:
            return None
        async with self._reviews:
            if not self._sources.allows(source):
                raise TooManyRejected
            identity = await self.cluster.review_token(token, audience)
        if identity is None:
            self._sources.count(source)
            _keep(self._rejected, digest, (now + REJECTED_LIFETIME, None), now, REJECTED_KEPT)
            return None
        _keep(self._valid, digest, (now + TOKEN_LIFETIME, identity), now, TOKENS_KEPT)
        return identity


def _keep(
    kept: OrderedDict[bytes, tuple[datetime, Value]],
    digest: bytes,
    result: tuple[datetime, Value],
    now: datetime,
    most: int,
) -> None:
    """Keep a result until its time; drop those whose time is over, and the oldest beyond `most`."""
    kept[digest] = result
    kept.move_to_end(digest)
    while len(kept) > most or next(iter(kept.values()))[0] <= now:
        kept.popitem(last=False)
