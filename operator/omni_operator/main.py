"""`python -m omni_operator.main`: the operator. Its settings are variables of the environment (docs/operator.md)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import kopf

from omni_operator.cluster.credentials import NoCredentials, find
from omni_operator.handlers.process import run
from omni_operator.settings import SettingsError, from_environ

log = logging.getLogger(__name__)


def main() -> int:
    """Run until told to stop; 0 then, 2 where the operator cannot start."""
    try:
        access = find(os.environ)
        settings = from_environ(os.environ, access.namespace)
    except (NoCredentials, SettingsError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is set up by what could not be read
        return 2
    kopf.configure(log_format=kopf.LogFormat[settings.log_format.upper()], verbose=settings.verbose)
    where = ", ".join(settings.namespaces) or "all namespaces"
    log.info("Omni Operator %s watches %s", _version(), where)
    while asyncio.run(run(settings, access, _version())):
        log.info("Omni Operator starts anew")
    return 0


def _version() -> str:
    try:
        return version_of("omni-operator")
    except PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    sys.exit(main())
