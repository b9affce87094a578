"""The endpoint of reports with an in-memory API server, and tokens of a job's trainer pod."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import aiohttp

from e2e.fake_cluster import FakeCluster
from omni_operator.api.names import report_audience
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, Key
from omni_operator.cluster.protocol import Identity
from omni_operator.reports.authorizer import ReportAuthorizer
from omni_operator.reports.endpoint import ReportEndpoint, ReportStore
from omni_operator.reports.relay import ReportRelay

KEY: Key = ("team-a", "red")
STEP = {"event": "step", "step": 3}
USER = "system:serviceaccount:team-a:default"
AUDIENCE = report_audience(*KEY)
POD = {"name": "red-a01-x1-worker", "uid": "p1"}


def token(*audiences: str, word: str = "sig", pod: Any = POD) -> str:
    claims = {"aud": list(audiences), **({"kubernetes.io": {"pod": pod}} if pod else {})}
    return f"header.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.{word}"


GOOD = token(AUDIENCE)


class ReportServer:
    """The endpoint with an in-memory API server."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.cluster = FakeCluster(lambda: self.now)
        self.cache = ObjectCache()
        self.reports = ReportStore()
        self.woken: list[Key] = []
        self.counted: list[str] = []
        self.port = self.versions = 0
        self.submit("u")
        self.attempt(1)
        self.cluster.tokens[GOOD, AUDIENCE] = Identity(USER, POD["name"], POD["uid"])

    def submit(self, uid: str) -> None:
        self.versions += 1
        meta = {"namespace": KEY[0], "name": KEY[1], "uid": uid, "resourceVersion": str(self.versions)}
        self.cache.put(JOBS, {"metadata": meta})

    def attempt(self, number: int, job: str = "u") -> dict[str, str]:
        """The objects of an attempt; the name and uid of its trainer pod."""
        labels = {"diffusionrl.io/job": KEY[1], "diffusionrl.io/attempt": str(number)}
        name = f"red-a{number:02d}"
        chain = [
            (RAYJOBS, name, f"j{number}", ("DiffusionRLJob", KEY[1], job)),
            (RAYCLUSTERS, f"{name}-x1", f"c{number}", ("RayJob", name, f"j{number}")),
            (PODS, f"{name}-x1-worker", f"p{number}", ("RayCluster", f"{name}-x1", f"c{number}")),
        ]
        for kind, child, uid, (owner, owner_name, owner_uid) in chain:
            controller = {"kind": owner, "name": owner_name, "uid": owner_uid, "controller": True}
            meta = {"namespace": KEY[0], "name": child, "uid": uid, "labels": labels, "ownerReferences": [controller]}
            self.cache.put(kind, {"metadata": meta})
        return {"name": f"{name}-x1-worker", "uid": f"p{number}"}

    def token_of(self, pod: dict[str, str]) -> str:
        signed = token(AUDIENCE, pod=pod)
        self.cluster.tokens[signed, AUDIENCE] = Identity(USER, pod["name"], pod["uid"])
        return signed

    def endpoint(self, body_seconds: float = 60.0, relay: ReportRelay | None = None) -> ReportEndpoint:
        authorizer = ReportAuthorizer(self.cluster, self.cache, lambda: self.now)
        return ReportEndpoint(
            self.reports,
            authorizer,
            self.cache,
            lambda: self.now,
            self.woken.append,
            self.counted.append,
            body_seconds=body_seconds,
            relay=relay,
        )

    async def post(
        self, bearer: str | None, body: Any, source: str = "127.0.0.1", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Post a body from a loopback address."""
        sent = {"Authorization": f"Bearer {bearer}"} if bearer is not None else {}
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(local_addr=(source, 0)), skip_auto_headers=["Content-Type"]
            ) as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/reports", data=data, headers=sent | headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else {}

    @property
    def reviews(self) -> int:
        return self.cluster.log.count(("create", "tokenreviews"))
