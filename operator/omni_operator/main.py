"""`python -m omni_operator.main`: the operator. Its settings are variables of the environment (docs/operator.md)."""

from __future__ import annotations

import asyncio
import logging
import os
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
    """Run until told to stop; 0 then, 2 where the operator cannot start."""
    try:
        while asyncio.run(operate(os.environ)):
            log.info("Omni Operator restarts its watches")
    except (NoCredentials, SettingsError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is set up by what could not be read
        return 2
    return 0


async def operate(environ: Mapping[str, str]) -> bool:
    """Run with settings and credentials of the environment; whether to run again."""
    credentials = await load_credentials(environ)
    settings = from_environ(environ, credentials.loaded.namespace)
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
