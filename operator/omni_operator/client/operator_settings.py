"""Settings of the operator that runs the jobs of a namespace, from its Deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.cluster.errors import ClusterError
from omni_operator.plan import ClusterSettings
from omni_operator.settings import PREFIX, SettingsError, from_environ

from .connection import Connection

DEPLOYMENTS = "/apis/apps/v1/deployments"
SELECTOR = "app.kubernetes.io/name=omni-operator"


class SettingsUnreadable(Exception):
    """The settings cannot be read; the message says why."""


def read_operator_settings(connection: Connection, namespace: str) -> ClusterSettings:
    """The settings of the operator that watches a namespace.

    Raises:
        SettingsUnreadable: users without the right to list Deployments of all namespaces get this.
    """
    try:
        found = connection.send("GET", DEPLOYMENTS, labelSelector=SELECTOR)["items"]
    except ClusterError as error:
        raise SettingsUnreadable(str(error)) from error
    try:
        return select_settings(found, namespace)
    except SettingsError as error:
        raise SettingsUnreadable(f"its version is not that of drl: {error}") from error


def select_settings(deployments: Iterable[Mapping[str, Any]], namespace: str) -> ClusterSettings:
    """The settings of the first of these Deployments that watches a namespace.

    Raises:
        SettingsUnreadable: none of them does.
        SettingsError: its environment variables are not those of this version.
    """
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            given = {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}
            if not any(name.startswith(PREFIX) for name in given):
                continue
            settings = from_environ(given, deployment["metadata"]["namespace"])
            if not settings.namespaces or namespace in settings.namespaces:
                return settings.cluster
    raise SettingsUnreadable(f"no Deployment with the label {SELECTOR} watches namespace {namespace}")
