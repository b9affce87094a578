"""Helm, built like the other programs of a test cluster, and the objects it renders from our chart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e.cluster import deadlines
from e2e.cluster.errors import CommandFailed
from e2e.cluster.processes import run
from e2e.cluster.tools import Program, Say, ensure

HELM = Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", note="5 to 10 minutes")
CHART = Path(__file__).resolve().parents[1] / "charts" / "omni-operator"
# `helm template` asks no API server which version it has; without this it takes a very old one for granted.
KUBERNETES = "1.37.2"
Body = dict[str, Any]
# Values that add something to the operator's pod or Deployment.
POD_VALUES: Body = {
    "replicas": 2,
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "extraEnv": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "extraEnvFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}],
    "extraVolumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
    "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
}


def helm(say: Say = print) -> Path:
    """The program, built where it is missing.

    Raises:
        ToolMissing: it has to be built and there is no Go.
        BuildFailed: the build failed.
    """
    return ensure((HELM,), say).path(HELM)


def rendered(program: Path, *options: str, namespace: str = "omni-system", chart: Path = CHART) -> list[Body]:
    """The objects that the chart makes with these options.

    Raises:
        CommandFailed: Helm refuses; the message has its output.
    """
    command = [str(program), "template", "omni", str(chart), f"--namespace={namespace}", f"--kube-version={KUBERNETES}"]
    text = run([*command, *options], deadline=deadlines.COMMAND)
    return [body for body in YAML(typ="safe").load_all(text) if body]


def refusal(program: Path, *options: str) -> str:
    """What Helm says when it refuses these options.

    Raises:
        AssertionError: it does not.
    """
    try:
        rendered(program, *options)
    except CommandFailed as error:
        return str(error)
    raise AssertionError(f"Helm takes {' '.join(options)}")


def on_cluster(program: Path, kubeconfig: Path, arguments: Sequence[str], deadline: float = deadlines.COMMAND) -> str:
    """Output of a Helm command that talks to a cluster.

    Raises:
        CommandFailed: it failed.
        ToolMissing: the program is not there.
    """
    return run([str(program), f"--kubeconfig={kubeconfig}", *arguments], deadline=deadline)
