"""The client of the API server, against a small HTTP server: requests as sent, errors, credentials, metering."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from control.cluster.local_server import RotatingCredentials, loaded, serving
from omni_operator.cluster.client import ApiServer, as_yaml
from omni_operator.cluster.errors import (
    RETRY_AFTER_MOST,
    AlreadyExists,
    ClusterError,
    Conflict,
    DefinitionOutdated,
    Forbidden,
    KindAbsent,
    NamespaceTerminating,
    NotFound,
    NotLeader,
    PolicyDenied,
    QuotaExceeded,
    Refused,
    ServerError,
    Unavailable,
)
from omni_operator.cluster.kinds import JOBS, LEASES, PODS, RAYCLUSTERS, RAYJOBS
from omni_operator.cluster.leader.write_fence import WriteFence
from omni_operator.status.decisions.situation import GroupChange

JOB = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"namespace": "ns", "name": "red"}}
# Parameters of writes. The operator does not read the warnings about unknown fields, so it asks for none.
MINE = {"fieldManager": "diffusionrl-operator", "fieldValidation": "Ignore"}
# A webhook chooses the code of its denial: 400 if it names none, 403 in Gatekeeper.
DENIED_BY_WEBHOOK = 'admission webhook "validation.gatekeeper.sh" denied the request: [cost-centre] no label'
DENIED_BY_POLICY = "rayclusters \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no"
JOB_PATH = "/apis/diffusionrl.io/v1alpha1/namespaces/ns/diffusionrljobs/red"

TEXT = st.text(max_size=40)  # keys of YAML have a limit
SCALED = GroupChange(index=1, group="rollout", old=2, new=5)


class RecordingServer:
    """An HTTP server that records requests and returns a given answer."""

    cluster: ApiServer  # its client

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[web.Request], web.Response] = lambda request: web.json_response({"kind": "Status"})
        self.metered: list[tuple[str, str, int]] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        sent = json.loads(await request.text() or "null")
        self.requests.append((request.method, request.path, dict(request.query), sent))
        self.headers.append(dict(request.headers))
        return self.answer(request)

    def meter(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.metered.append((verb, resource, code))


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    recording = RecordingServer()
    async with serving(recording.handle) as recording.port, client(recording) as recording.cluster:
        yield recording


def client(server: RecordingServer, *tokens: str, **options: Any) -> ApiServer:
    return ApiServer(RotatingCredentials(server.port, *(tokens or ("t",))), server.meter, version="1", **options)


@asynccontextmanager
async def silence() -> AsyncIterator[int]:
    """A port that takes connections and answers none."""
    opened: list[asyncio.StreamWriter] = []  # from Python 3.13 on, a stream without a reference is closed
    server = await asyncio.start_server(lambda reader, writer: opened.append(writer), "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()


def status(code: int, message: str = "no", **details: Any) -> Callable[[web.Request], web.Response]:
    return lambda _: web.json_response({"kind": "Status", "message": message, "details": details}, status=code)


async def test_server_side_apply_sends_the_body_unchanged(server: RecordingServer) -> None:
    answered = {**JOB, "metadata": {**JOB["metadata"], "uid": "u", "resourceVersion": "7"}, "spec": {"x": [None, 1.5]}}
    server.answer = lambda _: web.json_response(answered, status=201)
    sent = {**JOB, "spec": {"empty": {}, "null": None, "list": [], "text": "ä \U0001f600"}}
    assert await server.cluster.apply(sent) == answered
    await server.cluster.apply_status(JOBS, answered, {"attempts": 1})
    mine = {**MINE, "force": "true"}
    assert server.requests[0] == ("PATCH", JOB_PATH, mine, sent)
    method, path, query, body = server.requests[1]
    assert (method, path, query) == ("PATCH", f"{JOB_PATH}/status", mine)
    assert body["metadata"] == {"name": "red", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    assert {headers["Content-Type"] for headers in server.headers} == {"application/apply-patch+yaml; charset=utf-8"}
    assert {headers["User-Agent"] for headers in server.headers} == {"diffusionrl-operator/1"}
    assert server.metered == [("apply", "diffusionrljobs", 201), ("apply_status", "diffusionrljobs", 201)]


@given(st.recursive(TEXT | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
@example("\U0001f600 \x7f\x85\xa0\u2028\ufeff\ufffe\x00\n\\ud83d")
def test_the_body_of_an_apply_request_is_the_same_as_yaml_and_as_json(body: Any) -> None:
    """The API server reads it as YAML; escapes of surrogates, which JSON would have, are an error there."""
    text = as_yaml(body)
    assert json.loads(text) == yaml.safe_load(text.encode()) == body
    assert not re.search(r"(?<!\\)(\\\\)*\\u[dD][89a-fA-F]", text)


def test_half_a_character_is_replaced() -> None:
    assert json.loads(as_yaml(["\ud83d", "\ude00\ud83d"])) == ["\ufffd", "\ufffd\ufffd"]


async def test_a_replica_that_does_not_lead_sends_no_write(server: RecordingServer) -> None:
    body = {**JOB, "metadata": {**JOB["metadata"], "uid": "u", "resourceVersion": "7"}}
    lease = {**body, "apiVersion": LEASES.api_version, "kind": LEASES.kind}
    fence = WriteFence()
    async with client(server, fence=fence.require) as cluster:
        writes = (
            lambda: cluster.apply(body),
            lambda: cluster.create(body),
            lambda: cluster.patch(JOBS, body, {}),
            lambda: cluster.apply_status(JOBS, body, {}),
            lambda: cluster.apply_condition(JOBS, "ns", "red", "u", None),
            lambda: cluster.delete(JOBS, "ns", "red", "u"),
            lambda: cluster.scale_group(RAYCLUSTERS, "ns", "red-a01-x1", "u", SCALED),
        )
        for write in writes:
            with pytest.raises(NotLeader, match="not sent, because this replica does not hold the leader's Lease"):
                await write()
        assert (server.requests, server.metered) == ([], [])
        await cluster.read(JOBS, "ns", "red")
        await cluster.patch(LEASES, lease, {})  # how it becomes the leader
        await cluster.review_token("t", "a")
        assert len(server.requests) == 3
        fence.open_until(fence.clock() + 3600)
        for write in writes:
            await write()
        assert len(server.requests) == 3 + len(writes)


async def test_a_write_ends_with_the_lease(server: RecordingServer) -> None:
    async with silence() as server.port, client(server, timeout=3600.0, fence=lambda what: 0.1) as cluster:
        with pytest.raises(Unavailable, match="no answer in time"):
            await cluster.create(JOB)


async def test_a_write_is_not_repeated_with_new_credentials_after_the_lease(server: RecordingServer) -> None:
    fence = WriteFence()
    fence.open_until(fence.clock() + 3600)

    def rejected(request: web.Request) -> web.Response:
        fence.close()
        return status(401)(request)

    server.answer = rejected
    async with client(server, "old", "new", fence=fence.require) as cluster:
        with pytest.raises(NotLeader):
            await cluster.create(JOB)
    assert len(server.requests) == 1


async def test_changes_and_deletions_name_the_object_that_was_read(server: RecordingServer) -> None:
    body = {**JOB, "metadata": {**JOB["metadata"], "uid": "u", "resourceVersion": "7"}}
    await server.cluster.patch(JOBS, body, {"metadata": {"finalizers": ["a"]}, "spec": {"seed": 1}})
    await server.cluster.delete(JOBS, "ns", "red", "u")
    for code in (404, 409):
        server.answer = status(code, name="red")
        await server.cluster.delete(JOBS, "ns", "red", "u")
        server.answer = status(code, DENIED_BY_WEBHOOK, name="red")
        with pytest.raises(PolicyDenied):
            await server.cluster.delete(JOBS, "ns", "red", "u")
    patch = {"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": ["a"]}, "spec": {"seed": 1}}
    assert server.requests[0] == ("PATCH", JOB_PATH, MINE, patch)
    assert server.headers[0]["Content-Type"] == "application/merge-patch+json"
    options = {"propagationPolicy": "Background", "preconditions": {"uid": "u"}}
    assert server.requests[1] == ("DELETE", JOB_PATH, {}, options)


async def test_the_number_of_pods_of_a_group_is_changed_only_where_it_is_the_expected_one(
    server: RecordingServer,
) -> None:
    await server.cluster.scale_group(RAYCLUSTERS, "ns", "red-a01-x1", "u", SCALED)
    for answer, error in (
        (status(422), Conflict),
        (status(409), Conflict),
        (status(403), Forbidden),
        (status(422, DENIED_BY_POLICY), PolicyDenied),
    ):
        server.answer = answer
        with pytest.raises(error):
            await server.cluster.scale_group(RAYCLUSTERS, "ns", "red-a01-x1", "u", SCALED)
    path = "/apis/ray.io/v1/namespaces/ns/rayclusters/red-a01-x1"
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/spec/workerGroupSpecs/1/groupName", "value": "rollout"},
        {"op": "test", "path": "/spec/workerGroupSpecs/1/replicas", "value": 2},
        {"op": "replace", "path": "/spec/workerGroupSpecs/1/replicas", "value": 5},
    ]
    assert server.requests[0] == ("PATCH", path, {**MINE, "fieldManager": "diffusionrl-operator-scale"}, patch)
    assert server.headers[0]["Content-Type"] == "application/json-patch+json"
    server.answer = status(200)
    server.requests[:] = []
    await server.cluster.scale_group(RAYCLUSTERS, "ns", "red-a01-x1", "u", replace(SCALED, old=0))
    assert server.requests[0][3] == [*patch[:2], patch[3]], "0 stands for a negative number too"
    await server.cluster.scale_group(RAYJOBS, "ns", "red-a01", "u", SCALED)
    assert [step["path"] for step in server.requests[1][3]][1:] == [
        f"/spec/rayClusterSpec/workerGroupSpecs/1/{part}" for part in ("groupName", "replicas", "replicas")
    ]


async def test_an_object_is_created_by_a_post_and_one_that_exists_is_read(server: RecordingServer) -> None:
    await server.cluster.create(JOB)
    assert server.requests[0] == ("POST", JOB_PATH.removesuffix("/red"), MINE, JOB)
    reply = {"kind": "Status", "reason": "AlreadyExists", "message": "exists"}
    server.answer = lambda _: web.json_response(reply, status=409)
    with pytest.raises(AlreadyExists):
        await server.cluster.create(JOB)
    server.answer = lambda _: web.json_response(JOB)
    assert await server.cluster.read(JOBS, "ns", "red") == JOB
    assert server.requests[-1][:2] == ("GET", JOB_PATH)
    server.answer = status(404, name="red")
    assert await server.cluster.read(JOBS, "ns", "red") is None


async def test_a_few_objects_are_listed_whole(server: RecordingServer) -> None:
    server.answer = lambda _: web.json_response({"kind": "PodList", "items": [{"kind": "Pod"}]})
    assert await server.cluster.list_objects(PODS, "ns", "x=z") == [{"kind": "Pod"}]
    assert server.requests == [("GET", "/api/v1/namespaces/ns/pods", {"labelSelector": "x=z"}, None)]


async def test_a_listing_is_paged_and_asks_for_metadata_alone(server: RecordingServer) -> None:
    def page(request: web.Request) -> web.Response:
        first = "continue" not in request.query
        meta = {"resourceVersion": "9", **({"continue": "a+b/="} if first else {})}
        name = "a" if first else "b"
        items = [{"metadata": {"name": name, "managedFields": [{}]}}]
        return web.json_response({"kind": "PartialObjectMetadataList", "metadata": meta, "items": items})

    server.answer = page
    listing = await server.cluster.list_metadata(PODS, "ns", "x/y=z")
    kept = [{"namespace": None, "name": name, "uid": None, "resourceVersion": None} for name in "ab"]
    assert (listing.items, listing.version) == (kept, 9)
    selected = {"labelSelector": "x/y=z", "limit": "100"}
    assert server.requests[0] == ("GET", "/api/v1/namespaces/ns/pods", selected, None)
    assert server.requests[1][2] == {**selected, "continue": "a+b/="}
    assert "as=PartialObjectMetadataList" in server.headers[0]["Accept"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(404, name="red"), NotFound),
        (status(404), KindAbsent),
        (status(409), Conflict),
        (status(403), Forbidden),
        (status(403, "exceeded quota: q"), QuotaExceeded),
        (status(403, "status unknown for quota: q, resources: count/rayjobs.ray.io"), QuotaExceeded),
        (status(403, causes=[{"reason": "NamespaceTerminating"}]), NamespaceTerminating),
        (status(422), Refused),
        (status(422, DENIED_BY_POLICY), PolicyDenied),
        *((status(code, DENIED_BY_WEBHOOK), PolicyDenied) for code in (400, 403, 404, 409)),
        (status(429, DENIED_BY_WEBHOOK), Unavailable),
        (status(500), ServerError),
        (status(503), Unavailable),
        (status(429), Unavailable),
        (lambda _: web.Response(text="404 page not found", status=404), KindAbsent),
    ],
)
async def test_an_error_has_the_kind_that_the_answer_means(
    server: RecordingServer, answer: Callable[[web.Request], web.Response], error: type[ClusterError]
) -> None:
    server.answer = answer
    with pytest.raises(error, match=r"^apply diffusionrl\.io/v1alpha1/namespaces/ns/diffusionrljobs/red: ") as raised:
        await server.cluster.apply(JOB)
    assert type(raised.value) is error
    if isinstance(raised.value, ServerError):
        assert raised.value.request == "apply diffusionrl.io/v1alpha1/namespaces/ns/diffusionrljobs/red"
    assert server.metered == [("apply", "diffusionrljobs", answer(None).status)]


async def test_a_status_that_the_definition_does_not_have_is_told_with_the_same_words_each_time(
    server: RecordingServer,
) -> None:
    body = {**JOB, "metadata": {**JOB["metadata"], "uid": "u", "resourceVersion": "1"}}
    messages = set()
    for field in (".status.reason", ".status.warnings"):  # the API server names another one each time
        server.answer = status(500, f"failed to create typed patch object: {field}: field not declared in schema")
        with pytest.raises(DefinitionOutdated, match="apply crds/ of the operator's version") as raised:
            await server.cluster.apply_status(JOBS, body, {})
        messages.add(str(raised.value))
    server.answer = status(500)
    with pytest.raises(ServerError):
        await server.cluster.apply_status(JOBS, body, {})
    assert len(messages) == 1, "else each pass would write another condition"


@pytest.mark.parametrize(
    ("header", "seconds"), [("17", 17.0), ("9" * 400, RETRY_AFTER_MOST), ("\xb2", None), ("-1", None), ("soon", None)]
)
async def test_retry_after_is_passed_on(server: RecordingServer, header: str, seconds: float | None) -> None:
    server.answer = lambda _: web.json_response({}, status=429, headers={"Retry-After": header})
    with pytest.raises(Unavailable) as raised:
        await server.cluster.apply(JOB)
    assert raised.value.after == seconds
    assert len(server.requests) == 1, "the package's own retries are off: the caller decides when to try again"


async def test_a_server_that_does_not_answer_is_unavailable_and_metered_with_code_0(server: RecordingServer) -> None:
    async with silence() as server.port, client(server, timeout=0.1) as cluster:
        with pytest.raises(ServerError, match=r"apply .*red: no answer in time") as slow:
            await cluster.apply(JOB)
    assert slow.value.request in str(slow.value)
    async with client(server) as cluster:
        with pytest.raises(Unavailable, match="ClientConnectorError") as away:
            await cluster.apply(JOB)
    assert not isinstance(away.value, ServerError), "what was sent is not the cause"
    assert server.metered == [("apply", "diffusionrljobs", 0)] * 2


async def test_rejected_credentials_are_renewed_once_for_all_requests(server: RecordingServer) -> None:
    accepted = "Bearer new"
    server.answer = lambda request: status(200 if request.headers.get("Authorization") == accepted else 401)(request)
    credentials = RotatingCredentials(server.port, "old", "new")
    async with ApiServer(credentials, server.meter, version="1") as cluster:
        await asyncio.gather(*(cluster.apply(JOB) for _ in range(8)))
        await cluster.apply(JOB)
    assert credentials.loads == 1
    assert [code for _, _, code in server.metered].count(401) == 8
    assert [code for _, _, code in server.metered].count(200) == 9


async def test_credentials_that_stay_rejected_are_an_error_after_one_retry(server: RecordingServer) -> None:
    server.answer = status(401, "Unauthorized")
    async with client(server, "a", "b", "c") as cluster:
        with pytest.raises(Unavailable, match="Unauthorized"):
            await cluster.apply(JOB)
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer a", "Bearer b"]


async def test_credentials_that_cannot_be_renewed_make_the_server_unavailable(server: RecordingServer) -> None:
    server.answer = status(401)
    async with client(server, "only") as cluster:
        with pytest.raises(Unavailable, match="the plug-in failed"):
            await cluster.apply(JOB)


async def test_a_server_that_moved_is_followed(server: RecordingServer) -> None:
    credentials = RotatingCredentials(server.port, "t")
    async with ApiServer(credentials, server.meter, version="1") as cluster:
        await cluster.apply(JOB)
        credentials.loaded = loaded(server.port, host="localhost")
        await cluster.apply(JOB)
    assert [headers["Host"] for headers in server.headers] == [f"127.0.0.1:{server.port}", f"localhost:{server.port}"]


async def test_token_review(server: RecordingServer) -> None:
    user = {"username": "system:serviceaccount:ns:a", "extra": {"authentication.kubernetes.io/pod-name": ["p"]}}
    server.answer = lambda _: web.json_response(
        {"kind": "TokenReview", "status": {"authenticated": True, "audiences": ["mine"], "user": user}}, status=201
    )
    identity = await server.cluster.review_token("secret", "mine")
    assert await server.cluster.review_token("secret", "other") is None
    assert (identity.user, identity.pod) == ("system:serviceaccount:ns:a", "p")
    assert server.requests[0][3]["spec"] == {"token": "secret", "audiences": ["mine"]}


@pytest.mark.parametrize("body", [{}, {"error": "sign in"}, {"metadata": {}, "items": []}])
async def test_an_answer_that_is_no_object_is_that_of_a_proxy(server: RecordingServer, body: dict[str, Any]) -> None:
    server.answer = lambda _: web.json_response(body)
    requests: list[Callable[[ApiServer], Awaitable[object]]] = [
        lambda cluster: cluster.apply(JOB),
        lambda cluster: cluster.read(JOBS, "ns", "red"),
        lambda cluster: cluster.list_metadata(JOBS, None, ""),
        lambda cluster: cluster.read_schema(JOBS),
        lambda cluster: cluster.review_token("secret", "mine"),
        lambda cluster: cluster.serves(JOBS),
    ]
    for request in requests:
        with pytest.raises(Unavailable, match="not an answer of the API server"):
            await request(server.cluster)
