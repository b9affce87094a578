"""Settings of the operator that runs the jobs of a namespace, from its Deployment."""

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.cluster.errors import ClusterError, Unavailable
from omni_operator.plan import ClusterSettings
from omni_operator.settings import PREFIX, SettingsError, from_environ

from .connection import Connection

DEPLOYMENTS = "/apis/apps/v1/deployments"
SELECTOR = "diffusionrl.io/component=operator"


class SettingsUnreadable(Exception):
    """The settings cannot be read; the message says why."""


class AmbiguousOperator(Exception):
    """Several Deployments may be the operator; the message names them."""


def read_operator_settings(connection: Connection, namespace: str) -> ClusterSettings:
    """The settings of the operator that watches a namespace.

    Raises:
        SettingsUnreadable: users without the right to list Deployments of all namespaces get this.
        AmbiguousOperator: several Deployments may be that operator.
        Unavailable: the API server does not answer, or rejects the credentials.
    """
    try:
        deployments = connection.list(DEPLOYMENTS, labelSelector=SELECTOR)
    except Unavailable:
        raise
    except ClusterError as error:
        raise SettingsUnreadable(str(error)) from error
    return select_settings(deployments, namespace)


def select_settings(deployments: Iterable[Mapping[str, Any]], namespace: str) -> ClusterSettings:
    """The settings of the only one of these Deployments that watches a namespace.

    Anyone who may create Deployments in some namespace can give one an operator's label and variables. So if several
    match, none is preferred: not the first one, and not one whose variables can be read.

    Raises:
        SettingsUnreadable: none watches the namespace, or its environment variables belong to another version.
        AmbiguousOperator: several watch the namespace, or may watch it.
    """
    candidates: dict[str, ClusterSettings | SettingsError] = {}
    for deployment in deployments:
        meta = deployment["metadata"]
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            variables = {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}
            if not any(name.startswith(PREFIX) for name in variables):
                continue
            name = f"{meta['namespace']}/{meta['name']}"
            try:
                settings = from_environ(variables, meta["namespace"])
            except SettingsError as error:
                candidates[name] = error
                continue
            if not settings.namespaces or namespace in settings.namespaces:
                candidates[name] = settings.cluster
    if len(candidates) > 1:
        names = ", ".join(sorted(candidates))
        raise AmbiguousOperator(f"{len(candidates)} Deployments may be the operator of namespace {namespace}: {names}")
    for name, candidate in candidates.items():
        if isinstance(candidate, SettingsError):
            raise SettingsUnreadable(f"the version of Deployment {name} differs from drl's: {candidate}") from candidate
        return candidate
    raise SettingsUnreadable(f"no Deployment with the label {SELECTOR} watches namespace {namespace}")
