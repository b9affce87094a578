"""The operator's process, `python -m omni_operator.main`: runs all watches until it is stopped.

Credentials and settings (docs/operate/operator.md) are environment variables.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import kopf

from omni_operator.cluster.credentials import NoCredentials, load_credentials
from omni_operator.handlers.process import run
from omni_operator.settings import SettingsError, from_environ

log = logging.getLogger(__name__)


def main() -> int:
    """Run until stopped. Return 0, or 2 if credentials or settings are invalid."""
    raise_file_limit()
    try:
        while asyncio.run(operate(os.environ)):
            log.info("Omni Operator restarts its watches")
    except asyncio.CancelledError:
        log.info("Omni Operator is stopped")
    except (NoCredentials, SettingsError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is not configured yet
        return 2
    return 0


def raise_file_limit() -> None:
    """Open as many files as the process may: each watched namespace takes a connection for each kind of object."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def operate(environ: Mapping[str, str]) -> bool:
    """Run with credentials and settings from the environment. Return whether to restart."""
    task = asyncio.current_task()
    assert task is not None
    # Until kopf runs, which has its own handler: the first process of a container ignores a signal without one.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    credentials = await load_credentials(environ)
    settings = from_environ(environ, credentials.loaded.namespace, os.getpid())
    kopf.configure(log_format=kopf.LogFormat[settings.log_format.upper()], verbose=settings.verbose)
    where = ", ".join(settings.namespaces) or "all namespaces"
    log.info("Omni Operator %s watches %s", _version(), where)
    return await run(settings, credentials, _version())


def _version() -> str:
    try:
        return version_of("omni-operator")
    except PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    sys.exit(main())
