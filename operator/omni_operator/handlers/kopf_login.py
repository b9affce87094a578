"""kopf's login: the operator's credentials, and HTTP responses whose JSON Python can parse at any depth.

The API server takes objects that are nested in 10,000 levels, also in fields that any author of a job can write. kopf
ends when it cannot parse an event, so deeper levels are cut from the text before (`cluster/nested_json.py`).
"""

import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf
from typing_extensions import override

from omni_operator.cluster.credentials import Credentials, Loaded
from omni_operator.cluster.nested_json import cut_text, load_json

LOGIN_BACKOFF = 5.0  # seconds before kopf retries a failed login


def register_login(registry: kopf.OperatorRegistry, credentials: Credentials) -> None:
    """Register a login handler: kopf uses the operator's credentials, renewed when they expire or are rejected."""
    loaded: Loaded | None = None

    @kopf.on.login(registry=registry, backoff=LOGIN_BACKOFF)
    async def login(**_: Any) -> kopf.AiohttpSession:
        nonlocal loaded
        loaded = await credentials.current(rejected=loaded)
        return new_session(await connection_info(loaded))


class ConnectionInfo(kopf.ConnectionInfo):
    """Credentials in kopf's format, for a TLS context that accepts a CA without key identifiers, as kubectl does."""

    @override
    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


async def connection_info(loaded: Loaded) -> ConnectionInfo:
    """Credentials in kopf's format."""
    configuration = loaded.configuration
    scheme, _, token = (await configuration.get_api_key_with_prefix("BearerToken") or "").partition(" ")
    return ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        default_namespace=loaded.namespace,
        expiration=loaded.expires,
    )


def new_session(info: ConnectionInfo) -> kopf.AiohttpSession:
    """A session as kopf would make it, but with responses of limited depth. kopf closes it."""
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        expiration=info.expiration,
        aiohttp_session=aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            response_class=ShallowResponse,
        ),
    )


class ShallowResponse(aiohttp.ClientResponse):
    """A response whose JSON has at most `DEPTH` levels, as a whole and on each line."""

    @override
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        response = await super().start(connection)
        self.content: Any = ShallowLines(self.content)
        return response

    @override
    async def json(self, **_: Any) -> Any:
        return load_json(await self.read())


class ShallowLines:
    """A stream of JSON documents, one a line."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole lines, as kopf reads a watch."""
        unfinished = b""
        async for part in self._stream.iter_chunked(size):
            *lines, unfinished = (unfinished + part).split(b"\n")
            for line in lines:
                yield cut_text(line) + b"\n"
        # An event without its end is dropped: kopf continues from the version before it.
