"""`drl` as a user of a cluster, also of one whose kubeconfig runs an exec plug-in."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from e2e import helm
from e2e.cluster import deadlines, pki
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.exec_plugin import ExecPlugin
from omni_operator.cli.main import app

ROLES = "templates/user-roles.yaml"
OPENED = 60.0


def run_drl(kubeconfig: Path, *arguments: str | Path, stdin: str | None = None) -> Result:
    """What the command prints, and its exit code."""
    return CliRunner().invoke(app, [*map(str, arguments), f"--kubeconfig={kubeconfig}"], input=stdin)


@contextmanager
def opened(kubeconfig: Path, job: str, namespace: str, folder: Path) -> Iterator[dict[str, Any]]:
    """What `drl open --json` prints, while it runs; its output is a file in the folder."""
    printed = folder / "opened.json"
    command = [sys.executable, "-m", "omni_operator.cli", "open", job, "--port=0", "--json"]
    with printed.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*command, f"--namespace={namespace}", f"--kubeconfig={kubeconfig}"], stdout=file, stdin=subprocess.DEVNULL
        )
    try:
        deadlines.wait_until(f"drl open {job}", OPENED, lambda: printed.read_text(encoding="utf-8").endswith("\n"))
        yield json.loads(printed.read_text(encoding="utf-8"))
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Drl:
    """The command with a user's kubeconfig, whose context names the user's namespace."""

    kubeconfig: Path
    plugin: ExecPlugin

    def __call__(self, *arguments: str | Path, stdin: str | None = None) -> Result:
        return run_drl(self.kubeconfig, *arguments, stdin=stdin)


def drl_of(plane: ControlPlane, namespace: str, role: str, folder: Path, kind: str = "ClusterRole") -> Drl:
    """`drl` as a service account with a role: view, edit or admin, with the chart's rules, or a custom one."""
    with plane.api("e2e-user") as api:
        install_user_roles(api)
        core = f"/api/v1/namespaces/{namespace}"
        api.post(f"{core}/serviceaccounts", {"metadata": {"name": role}})
        api.post(
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
            {
                "metadata": {"name": role},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": namespace}],
            },
        )
        token = api.post(f"{core}/serviceaccounts/{role}/token", {"spec": {}})["status"]["token"]
    plugin = ExecPlugin(folder)
    plugin.print_token(token)
    config = pki.kubeconfig(plane.layout.server, plane.authority.certificate.read_bytes(), plugin.user)
    config["contexts"][0]["context"]["namespace"] = namespace
    path = folder / f"kubeconfig-{role}"
    path.write_text(json.dumps(config), encoding="utf-8")
    return Drl(path, plugin)


def install_user_roles(api: Api) -> None:
    """The chart's roles, once, and with them the rules of view and edit, which a controller adds."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    for body in helm.rendered(helm.helm(), f"--show-only={ROLES}"):
        try:
            api.post(path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def added() -> bool:
        roles = (api.get(f"{path}/{name}")["rules"] or () for name in ("view", "edit"))
        return all(any("diffusionrl.io" in rule.get("apiGroups", ()) for rule in rules) for rules in roles)

    deadlines.wait_until("the chart's rules in view and edit", deadlines.API_READY, added)
