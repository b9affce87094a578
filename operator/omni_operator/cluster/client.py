"""Client of the API server over HTTP, on the official kubernetes package."""

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from omni_operator.api.names import FIELD_MANAGER
from omni_operator.status.decisions.situation import GroupChange

from .authenticated_client import AuthenticatedClient
from .credentials import Credentials, Loaded
from .errors import Conflict, DefinitionOutdated, KindAbsent, NotFound, Refused, ServerError, Unavailable, error_of
from .kinds import LEASES, RAYJOBS, TOKEN_REVIEWS, Body, Kind, Meta, kind_of, version_of
from .leader.write_fence import no_fence
from .nested_json import load_json
from .protocol import Identity, Listing
from .server_clock import ServerClock

# With the character set, because the package makes JSON of a body of the bare type.
APPLY = "application/apply-patch+yaml; charset=utf-8"
CONDITION_MANAGER = f"{FIELD_MANAGER}-condition"
SCALE_MANAGER = f"{FIELD_MANAGER}-scale"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
KEPT = ("namespace", "name", "uid", "resourceVersion")
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PAGE = 100  # objects, of which a user's annotations may take 256 KiB each
UNDECLARED = "field not declared in schema"  # in the answer to an apply request, which has the code 500
CONNECT_SECONDS = 10.0
ANSWERS = frozenset({"kind", "openapi"})  # one of which each object of the API server has, and each page of its schema
UNFENCED = (LEASES, TOKEN_REVIEWS)  # Leases decide who leads; a TokenReview changes nothing
CONNECTIONS = 24  # each takes 128 KiB for TLS
# called with verb, resource, status code (0: no answer) and seconds
Meter = Callable[[str, str, int, float], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the API server; `body` is None if it is not a JSON object."""

    code: int
    body: Body | None
    retry_after: str | None


class ApiServer(AuthenticatedClient):
    """A `Cluster` over HTTP. Use as an async context manager.

    Args:
        fence: called before each write; returns the seconds in which it must end, or raises NotLeader.

    Attributes:
        clock: the API server's time.
    """

    def __init__(
        self,
        credentials: Credentials,
        meter: Meter,
        *,
        version: str,
        timeout: float = 30.0,
        fence: Callable[[str], float] = no_fence,
    ) -> None:
        super().__init__(credentials, version=version, connections=CONNECTIONS)
        self._meter = meter
        self._timeout = timeout
        self._fence = fence
        self.clock = ServerClock()

    async def apply(self, body: Body) -> Body:
        kind = kind_of(body)
        meta = body["metadata"]
        path = kind.path(meta["namespace"], meta["name"])
        return await self._send("apply", kind, "PATCH", path, body, APPLY, _forced(FIELD_MANAGER))

    async def apply_status(self, kind: Kind, body: Body, status: Body) -> Body:
        # With the version, a status that rests on an old one is a conflict, e.g. after another replica has led.
        meta = {name: body["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        return await self._apply_status(kind, meta, status, FIELD_MANAGER)

    async def apply_condition(self, kind: Kind, namespace: str, name: str, uid: str, condition: Body | None) -> Body:
        status = {"conditions": [condition]} if condition else {}
        # The uid makes the write fail with a conflict if the job was deleted and created again in the meantime.
        meta = {"name": name, "namespace": namespace, "uid": uid}
        return await self._apply_status(kind, meta, status, CONDITION_MANAGER)

    async def _apply_status(self, kind: Kind, meta: Meta, status: Body, manager: str) -> Body:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "status": status}
        path = kind.path(meta["namespace"], meta["name"], "status")
        try:
            return await self._send("apply_status", kind, "PATCH", path, body, APPLY, _forced(manager))
        except ServerError as error:
            if UNDECLARED not in str(error):
                raise
            # Not the server's words, which name another field each time: the condition would change with every pass.
            log.warning("%s", error)
            raise DefinitionOutdated(
                f"the definition of {kind.kind} on the cluster (CRD) lacks fields of the status, so it is older than "
                "this operator: apply crds/ of the operator's version (docs/operate/install.md)"
            ) from error

    async def patch(self, kind: Kind, body: Body, changes: Body) -> Body:
        meta = body["metadata"]
        # An object that was deleted and created again has another version too.
        precondition = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        patch = {**changes, "metadata": {**changes.get("metadata", {}), **precondition}}
        path = kind.path(meta["namespace"], meta["name"])
        return await self._send("patch", kind, "PATCH", path, patch, MERGE, _as_manager(FIELD_MANAGER))

    async def scale_group(self, kind: Kind, namespace: str, name: str, uid: str, change: GroupChange) -> Body:
        spec = "/spec/rayClusterSpec" if kind == RAYJOBS else "/spec"
        group = f"{spec}/workerGroupSpecs/{change.index}"
        # Not the version of the object: KubeRay writes its status all the time, which would be a conflict each time.
        tests: dict[str, Any] = {"/metadata/uid": uid, f"{group}/groupName": change.group}
        if change.old:  # the operator writes 1 or more; 0 may stand for a negative number of a user
            tests[f"{group}/replicas"] = change.old
        patch = [
            *({"op": "test", "path": path, "value": value} for path, value in tests.items()),
            {"op": "replace", "path": f"{group}/replicas", "value": change.new},
        ]
        if change.limits:
            names = zip(("minReplicas", "maxReplicas"), change.limits, strict=True)
            patch.extend({"op": "add", "path": f"{group}/{limit}", "value": value} for limit, value in names)
        if change.removed:
            strategy = {"workersToDelete": list(change.removed)}
            patch.append({"op": "add", "path": f"{group}/scaleStrategy", "value": strategy})
        path = kind.path(namespace, name)
        parameters = _as_manager(SCALE_MANAGER)
        try:
            return await self._send("patch", kind, "PATCH", path, patch, JSON_PATCH, parameters)
        except Refused as error:
            if type(error) is not Refused:  # not for lack of a right or of quota: a test failed
                raise
            raise Conflict(f"{kind.plural} {name}: {error}") from error

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._send("delete", kind, "DELETE", kind.path(namespace, name), options, ignore_missing=True)

    async def create(self, body: Body) -> Body:
        kind = kind_of(body)
        path = kind.path(body["metadata"]["namespace"])
        parameters = _as_manager(FIELD_MANAGER)
        return await self._send("create", kind, "POST", path, body, parameters=parameters)

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        try:
            return await self._send("get", kind, "GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def list_objects(self, kind: Kind, namespace: str, selector: str) -> list[Body]:
        answer = await self._send("list", kind, "GET", kind.path(namespace), parameters={"labelSelector": selector})
        return list(answer.get("items") or ())

    async def list_metadata(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        items: list[Meta] = []
        version = 0
        async for page in self._pages(kind, namespace, selector):
            # Only what tells objects apart: managedFields of thousands of objects take much memory.
            items.extend({name: item["metadata"].get(name) for name in KEPT} for item in page.get("items") or ())
            version = version_of(page["metadata"])
        return Listing(items, version)

    async def _pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Body]:
        parameters = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            page = await self._send("list", kind, "GET", kind.path(namespace), parameters=parameters, accept=METADATA)
            yield page
            token = page["metadata"].get("continue")
            if not token:
                return
            parameters = {**parameters, "continue": token}

    async def serves(self, kind: Kind) -> bool:
        try:
            answer = await self._send("get", kind, "GET", kind.root)
        except KindAbsent:
            return False
        return any(resource["name"] == kind.plural for resource in answer.get("resources") or ())

    async def read_schema(self, kind: Kind) -> Body | None:
        try:
            answer = await self._send("get", kind, "GET", f"/openapi/v3{kind.root}")
        except (KindAbsent, NotFound):
            return None
        wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        schemas: dict[str, Body] = (answer.get("components") or {}).get("schemas") or {}
        return next(
            (body for body in schemas.values() if wanted in body.get("x-kubernetes-group-version-kind", ())), None
        )

    async def review_token(self, token: str, audience: str) -> Identity | None:
        body = {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._send("create", TOKEN_REVIEWS, "POST", TOKEN_REVIEWS.path(None), body)
        status = answer.get("status") or {}
        if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
            return None
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        name, uid = (extra.get(f"authentication.kubernetes.io/pod-{part}") or [""] for part in ("name", "uid"))
        return Identity(str(user.get("username") or ""), str(name[0]), str(uid[0]))

    async def _send(
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        body: Body | list[Body] | None = None,
        content: str = "application/json",
        parameters: Mapping[str, str] | None = None,
        *,
        accept: str = "application/json",
        ignore_missing: bool = False,
    ) -> Body:
        """Send a request; if its credentials are rejected, send it once more with renewed ones.

        Raises:
            ClusterError: the subclass for the answer, Unavailable without one, or NotLeader.
        """
        what = f"{verb} {path.rsplit('/apis/', maxsplit=1)[-1]}"
        path += f"?{urlencode(parameters)}" if parameters else ""
        headers = {"Accept": accept, "Content-Type": content}
        rejected: Loaded | None = None
        while True:
            client = await self._authenticated_client(what, rejected)
            used = self._used
            # Not by the package's `param_serialize`, which copies everything, although it is text already.
            sent = {**client.default_headers, **headers}
            await client.update_params_for_auth(sent, [], ["BearerToken"], path, method, None)
            text = as_yaml(body) if content == APPLY else body
            answer = await self._exchange(
                verb, kind, client, (method, client.configuration.host + path, sent, text), what
            )
            if answer.code != 401 or rejected is not None:
                break
            rejected = used
        if answer.code < 300:
            if answer.body is None or ANSWERS.isdisjoint(answer.body):
                raise Unavailable(f"{what}: HTTP {answer.code} without an object: not an answer of the API server")
            return answer.body
        error = error_of(answer.code, answer.body, what, answer.retry_after)
        if ignore_missing and isinstance(error, NotFound | KindAbsent | Conflict):  # Conflict: a new object's name
            return {}
        raise error

    async def _exchange(self, verb: str, kind: Kind, client: ApiClient, request: Any, what: str) -> _Answer:
        """Send one request. The answer stays a dictionary: the package's models would copy every object."""
        seconds = self._timeout
        if request[0] != "GET" and kind not in UNFENCED:
            seconds = min(seconds, self._fence(what))
        timeout = aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS)
        begun = time.monotonic()
        sent = self.clock.seconds()
        code = 0
        try:
            response = await client.call_api(*request, _request_timeout=timeout)
            code = response.status
            data = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            # The connection's own timeouts are errors of aiohttp.
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                # A webhook may take longer than a write may, so that no answer ever names it.
                text = f"{what}: no answer in time: the API server, or a webhook that it calls, is too slow"
                raise ServerError(text, request=what) from error
            self._note_untrusted(error, self._used)
            raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self._meter(verb, kind.plural, code, time.monotonic() - begun)
        body = parse_json(data)
        if body is not None and not ANSWERS.isdisjoint(body):  # no page of a proxy, which has another clock
            self.clock.observe(response.headers.get("Date"), sent)
        return _Answer(code, body, response.headers.get("Retry-After"))


def _as_manager(name: str) -> dict[str, str]:
    """Parameters of a write.

    By default the API server also looks for unknown fields and warns of them, which the operator does not read. To find
    them, it parses the body of an apply request a second time.
    """
    return {"fieldManager": name, "fieldValidation": "Ignore"}


def _forced(manager: str) -> dict[str, str]:
    """Parameters of an apply request, which takes its fields from other managers."""
    return {**_as_manager(manager), "force": "true"}


_ESCAPED = re.compile(r"[\x7f-\uffff]")
_SURROGATES = range(0xD800, 0xE000)


def as_yaml(body: object) -> str:
    """JSON that is read the same as YAML, which the API server takes the body of an apply request for.

    JSON writes a character beyond U+FFFF as two escapes, its surrogates, and YAML has no such escapes: the API server
    refuses the whole object. So these characters are not escaped. A surrogate without the other one, which no text
    should have, becomes U+FFFD, as in the API server's JSON.
    """

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\u{0xFFFD if code in _SURROGATES else code:04x}"

    return _ESCAPED.sub(escape, json.dumps(body, ensure_ascii=False))


def parse_json(data: bytes) -> Body | None:
    """An answer's body; None if it is not a JSON object."""
    try:
        value = load_json(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
