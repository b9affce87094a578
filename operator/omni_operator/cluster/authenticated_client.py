"""HTTP client with the operator's credentials: what the clients of requests and of watches share."""

from types import TracebackType
from typing import Self

import aiohttp
from kubernetes.aio.client import ApiClient

from omni_operator.api.names import FIELD_MANAGER

from .credentials import Credentials, Loaded, NoCredentials
from .errors import Unavailable


class AuthenticatedClient:
    """A client whose credentials are renewed when they expire or are rejected. Use as an async context manager.

    Args:
        connections: the most at one time; 0: any number.
    """

    def __init__(self, credentials: Credentials, *, version: str, connections: int) -> None:
        self._credentials = credentials
        self._agent = f"{FIELD_MANAGER}/{version}"
        self._connections = connections
        self._used = credentials.loaded
        self._client: ApiClient | None = None
        self._untrusted: Loaded | None = None

    async def __aenter__(self) -> Self:
        self._used = self._credentials.loaded
        self._client = self._new_client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client:
            await self._client.close()

    async def _authenticated_client(self, what: str, rejected: Loaded | None) -> ApiClient:
        """The client, with credentials that have neither expired nor been rejected.

        Raises:
            Unavailable: there are none.
        """
        assert self._client is not None, "used outside its context"
        untrusted = self._untrusted
        self._untrusted = None
        if untrusted is not None and untrusted.outdated:
            rejected = untrusted
        try:
            current = await self._credentials.current(rejected)
        except NoCredentials as error:
            raise Unavailable(f"{what}: {error}") from error
        if current is not self._used:
            before = self._used
            self._used = current
            if before.endpoint != current.endpoint:
                replaced = self._client
                self._client = self._new_client()
                await replaced.close()  # its watches break and are opened again
            else:
                self._client.configuration = current.configuration
        return self._client

    def _note_untrusted(self, error: Exception, used: Loaded) -> None:
        """Before the next request, look whether there are other certificates, if that is why this one failed."""
        if isinstance(error, aiohttp.ClientSSLError):
            self._untrusted = used

    def _new_client(self) -> ApiClient:
        configuration = self._used.configuration
        # Other clients have the same configuration; each reads the limit when it is made.
        configuration.connection_pool_maxsize = self._connections
        client = ApiClient(configuration)
        client.user_agent = self._agent
        return client
