"""Credentials for the API server: the pod's service account, or a kubeconfig, both loaded by the kubernetes package."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from yaml import YAMLError

from omni_operator.api.names import SERVICE_ACCOUNT

ACCOUNT = Path(SERVICE_ACCOUNT)
PLUGIN_SECONDS = 60.0  # for an exec plug-in, which may log in over the network


class NoCredentials(RuntimeError):
    """There is neither a service account nor a usable kubeconfig."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Address and credentials, as loaded at one time.

    Attributes:
        configuration: with a service account it reads the token again every minute, because kubelets replace it.
        namespace: the operator's namespace.
        expires: when an exec plug-in's token expires, if the plug-in says so.
        source: the files that were loaded: one or several kubeconfigs; none for a service account.
        digest: hash of the contents of these files and of the certificates when they were loaded.
    """

    configuration: Configuration
    namespace: str
    expires: datetime | None = None
    source: tuple[str, ...] = ()
    digest: str = ""

    @property
    def endpoint(self) -> tuple[object, ...]:
        """The settings of connections. Tokens are not among them: they are sent with each request."""
        configuration = self.configuration
        files = configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file
        return configuration.host, configuration.proxy, configuration.verify_ssl, *files, self.digest

    @property
    def outdated(self) -> bool:
        """Whether the files have something else by now."""
        return digest_files(self.configuration, self.source) != self.digest


@dataclass(slots=True)
class Credentials:
    """The operator's credentials, which its client and kopf share, and how to load them again."""

    loaded: Loaded
    _environ: Mapping[str, str]
    _account: Path
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def current(self, rejected: Loaded | None = None) -> Loaded:
        """Credentials that have not expired and are not those that the API server rejected.

        Raises:
            NoCredentials: they cannot be loaded again.
        """
        async with self._lock:  # one request of many runs the exec plug-in
            expires = self.loaded.expires
            if self.loaded is rejected or (expires is not None and expires <= datetime.now(UTC)):
                self.loaded = await _load(self._environ, self._account)
            return self.loaded


async def load_credentials(environ: Mapping[str, str], account: Path = ACCOUNT) -> Credentials:
    """Load the kubeconfig that KUBECONFIG names, else the pod's service account, else ~/.kube/config.

    Raises:
        NoCredentials: there is none of these, or it cannot be used.
    """
    return Credentials(await _load(environ, account), environ, account)


async def _load(environ: Mapping[str, str], account: Path) -> Loaded:
    kubeconfig = _find_kubeconfig(environ, account)
    return await _from_kubeconfig(kubeconfig) if kubeconfig else _from_account(environ, account)


def _find_kubeconfig(environ: Mapping[str, str], account: Path) -> str | None:
    """The kubeconfig to load; None for the service account."""
    if kubeconfig := environ.get("KUBECONFIG", "").strip(os.pathsep):
        return kubeconfig
    if (account / "token").exists():
        return None
    home = Path(environ.get("HOME", "/"), ".kube", "config")
    if home.exists():
        return str(home)
    raise NoCredentials(
        f"no credentials for the API server: KUBECONFIG is not set, and neither {account}/token nor {home} exists"
    )


def _from_account(environ: Mapping[str, str], account: Path) -> Loaded:
    """Load the service account. The server is an IP address, so it is reachable before the cluster's DNS is up."""
    configuration = _new_configuration()
    loader = InClusterConfigLoader(str(account / "token"), str(account / "ca.crt"), environ=environ)
    try:
        loader.load_and_set(configuration)
        namespace = (account / "namespace").read_text().strip()
        return Loaded(configuration, namespace, digest=digest_files(configuration, ()))
    except (ConfigException, OSError) as error:
        raise NoCredentials(f"the service account in {account} cannot be used: {error}") from error


async def _from_kubeconfig(paths: str) -> Loaded:
    """Load the current context of a kubeconfig, or of several that are separated as in PATH."""
    configuration = _new_configuration()
    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            loader = await load_kube_config(config_file=paths, client_configuration=configuration, persist_config=False)
    except TimeoutError as error:
        raise NoCredentials(f"{paths}: the exec plug-in did not answer within {PLUGIN_SECONDS:.0f} s") from error
    except (ConfigException, OSError, YAMLError, ValueError, TypeError, AttributeError) as error:
        raise NoCredentials(f"{paths}: the current context cannot be used: {error}") from error
    context = loader.current_context["context"]
    if context.get("user") and not configuration.api_key and not configuration.cert_file:
        raise NoCredentials(
            f"{paths}: user {context['user']!r} has no credentials: a token, a client certificate, a password, or an "
            "exec plug-in that works (the log says why one failed)"
        )
    expires: datetime | None = getattr(loader, "exec_plugin_expiry", None)
    if expires is not None and expires <= datetime.now(UTC):
        expires = None  # the clocks differ: the API server decides, else the plug-in would run for each request
    source = tuple(paths.split(os.pathsep))
    namespace = str(context.get("namespace") or "default")
    return Loaded(configuration, namespace, expires, source, digest_files(configuration, source))


def digest_files(configuration: Configuration, source: tuple[str, ...]) -> str:
    """Hash of the current contents of certificates and kubeconfigs; an unreadable file counts as empty.

    The files are replaced in place when certificates are renewed, while connections keep what they have read.
    """
    digest = hashlib.sha256()
    for path in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file, *source):
        try:
            content = Path(path).read_bytes() if path else b""
        except OSError:
            content = b""
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _new_configuration() -> Configuration:
    configuration = Configuration()
    # No proxies from the environment: aiohttp does not read ranges such as 10.96.0.0/12 in NO_PROXY, so requests of a
    # pod would leave the cluster. A kubeconfig's proxy-url is used.
    configuration.client_session_kwargs = {"trust_env": False}
    # As kubectl: Python 3.13 refuses CAs without key identifiers, which clusters have.
    configuration.disable_strict_ssl_verification = True
    return configuration
