"""Operation of the process: credentials and settings from the environment, then all watches until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import kopf

from omni_operator.cluster.credentials import NoCredentials, load_credentials
from omni_operator.handlers.process import run
from omni_operator.settings import SettingsError, from_environ

NEW_OBJECTS = 10_000  # before the garbage collector looks at them
log = logging.getLogger(__name__)


def run_operator() -> int:
    """Run until stopped. Return 0, or 2 if credentials or settings are invalid."""
    spare_collections()
    raise_file_limit()
    try:
        while asyncio.run(operate(os.environ)):
            log.info("Omni Operator restarts its watches")
    except (NoCredentials, SettingsError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is not configured yet
        return 2
    return 0


def spare_collections() -> None:
    """Let the garbage collector stop the event loop seldom and briefly.

    What was imported stays until the end, and is more than the objects of thousands of jobs: no collection looks at it
    again. Parsed JSON has no cycles, so a collection for each 700 objects finds nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def raise_file_limit() -> None:
    """Open as many files as the process may: each watched namespace takes a connection for each kind of object."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def operate(environ: Mapping[str, str]) -> bool:
    """Run with credentials and settings from the environment. Return whether to restart."""
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
