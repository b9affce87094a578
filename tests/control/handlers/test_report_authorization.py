"""Authorization of reports: claims and reviews of tokens, and limits of rejected ones."""

import asyncio
import base64
from collections import Counter
from datetime import timedelta

import pytest

from control.handlers.report_server import AUDIENCE, GOOD, KEY, POD, STEP, USER, ReportServer, token
from omni_operator.api.names import report_audience
from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.protocol import Identity
from omni_operator.reports.authorizer import REJECTED_BURST, REVIEWS_AT_ONCE, Claims, read_claims
from omni_operator.reports.authorizer import source_of as source


@pytest.mark.parametrize(
    ("bearer", "code"),
    [
        (None, 401),
        ("", 401),
        ("nonsense", 401),
        ("a.b.c", 401),
        (token("https://kubernetes.default.svc"), 401),
        (token(AUDIENCE, word="forged"), 403),
        (token(report_audience("team-a", "blue")), 404),
        (token(AUDIENCE, pod=None), 403),
        (token(AUDIENCE, pod={"name": POD["name"], "uid": "p2"}), 403),
        (token(AUDIENCE, pod={"name": "other", "uid": "p1"}), 403),
        (token(AUDIENCE, pod="p1"), 403),
    ],
)
async def test_other_tokens_are_rejected(server: ReportServer, bearer: str | None, code: int) -> None:
    assert (await server.post(bearer, STEP))[0] == code
    assert server.reports.newest(KEY, "u") is None


async def test_only_a_token_that_names_a_pod_of_the_job_is_reviewed(server: ReportServer) -> None:
    for bearer in (token(report_audience("team-a", "blue")), token(AUDIENCE, pod=None), token("other")):
        await server.post(bearer, STEP)
    assert server.reviews == 0
    await server.post(token(AUDIENCE, word="forged"), STEP)
    assert server.reviews == 1


@pytest.mark.parametrize(
    "identity",
    [
        Identity("system:serviceaccount:team-b:default", pod=POD["name"], pod_uid=POD["uid"]),
        Identity("system:serviceaccount:team-a-b:default", POD["name"], POD["uid"]),
        Identity("jane", POD["name"], POD["uid"]),
        Identity(USER),
        Identity(USER, POD["name"]),
        Identity(USER, POD["name"], "p2"),
        Identity(USER, "other", POD["uid"]),
    ],
)
async def test_other_identities_are_rejected(server: ReportServer, identity: Identity) -> None:
    server.cluster.tokens[GOOD, AUDIENCE] = identity
    assert (await server.post(GOOD, STEP))[0] == 403
    assert server.counted == ["denied"]


async def test_token_reviews_are_cached_for_a_minute(server: ReportServer) -> None:
    for _ in range(50):
        await server.post(GOOD, STEP)
    assert server.cluster.counts() == {("create", "tokenreviews"): 1}
    server.now += timedelta(seconds=61)
    await server.post(GOOD, STEP)
    assert server.cluster.counts() == {("create", "tokenreviews"): 1}


async def test_a_rejected_token_is_not_reviewed_again_at_once(server: ReportServer) -> None:
    for _ in range(5):
        assert (await server.post(token(AUDIENCE, word="forged"), STEP))[0] == 403
    assert server.reviews == 1


async def test_results_of_reviews_do_not_last_longer_when_the_clock_is_set_back(server: ReportServer) -> None:
    forged = token(AUDIENCE, word="forged")
    await server.post(GOOD, STEP)
    await server.post(forged, STEP)
    server.now -= timedelta(hours=1)
    assert (await server.post(GOOD, STEP))[0] == 200
    assert (await server.post(forged, STEP))[0] == 403
    assert server.reviews == 4


@pytest.mark.slow
async def test_forged_tokens_are_limited_by_source_and_do_not_keep_a_trainer_out(server: ReportServer) -> None:
    attackers = [f"127.0.1.{number}" for number in range(1, 9)]

    async def attack(number: int) -> int:
        source = attackers[number % len(attackers)]
        return (await server.post(token(AUDIENCE, word=f"forged{number}"), STEP, source))[0]

    calls = [attack(number) for number in range(240)]
    answers = asyncio.gather(*calls)
    assert await server.post(GOOD, STEP, "127.0.2.1") == (200, {})
    codes = Counter(await answers)
    most = len(attackers) * REJECTED_BURST + REVIEWS_AT_ONCE
    assert server.reviews <= most + 1
    assert codes[403] <= most
    assert codes[403] + codes[429] == len(calls)
    assert (await server.post(token(AUDIENCE, word="forged"), STEP, attackers[0]))[0] == 429
    server.now += timedelta(minutes=5)
    assert (await server.post(token(AUDIENCE, word="forged"), STEP, attackers[0]))[0] == 403
    assert server.reviews <= most + 2


async def test_without_the_api_server_the_answer_is_503(server: ReportServer) -> None:
    async def unavailable(token: str, audience: str) -> Identity | None:
        raise Unavailable("no answer")

    server.cluster.review_token = unavailable
    for _ in range(3 * REJECTED_BURST):
        assert (await server.post(GOOD, STEP))[0] == 503


def test_claims_are_read_from_the_token() -> None:
    assert read_claims(GOOD) == Claims(KEY, (POD["name"], POD["uid"]))
    assert read_claims(token("other", report_audience("a", "b"), pod=None)) == Claims(("a", "b"), None)
    others = (report_audience("A/../B", "x"), report_audience("a", "b") + "/x", "")
    deep = base64.urlsafe_b64encode(b"[" * 5000).decode()
    for bad in ("", "x", "a.b.c", "a.W10=.c", "a.Nw==.c", f"a.{deep}.c", f"{GOOD}\udcff", token(), *map(token, others)):
        assert read_claims(bad) is None


def test_a_source_is_an_ipv4_address_or_a_network() -> None:
    assert source("10.0.0.7") == source("::ffff:10.0.0.7") == "10.0.0.7"
    assert source("fd00::1:2:3:4") == source("fd00::5") == "fd00::/64"
    assert source(None) == source("nonsense") == ""
