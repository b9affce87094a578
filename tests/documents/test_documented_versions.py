"""The versions of the support matrix are those that tests on clusters build and that the chart asks for."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from e2e.cluster.paths import SOURCES
from e2e.cluster.tools import KIND, KUBE, KUBERAY, KUEUE, version

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "Kubernetes": (KUBE.module, "k8s.io/kubernetes"),
    "KubeRay": (KUBERAY.module, "github.com/ray-project/kuberay/ray-operator"),
    "Kueue": (KUEUE.module, "sigs.k8s.io/kueue"),
    "Helm": ("helm", "helm.sh/helm/v3"),
    "kind": (KIND.module, "sigs.k8s.io/kind"),
}


def matrix() -> dict[str, list[str]]:
    """The cells of the support matrix, by component: in CI, by hand, oldest, not run."""
    text = (ROOT / "docs" / "operate" / "install.md").read_text(encoding="utf-8")
    table = text.partition("\n## Versions\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {cells[0]: cells[1:] for cells in rows[2:]}


@pytest.mark.parametrize("component", MODULES)
def test_ci_runs_the_documented_version(component: str) -> None:
    folder, module = MODULES[component]
    pinned = version(module, (SOURCES / folder / "go.mod").read_text(encoding="utf-8"))
    assert f"v{matrix()[component][0].split(',')[0]}" == pinned


def test_the_oldest_kubernetes_is_that_of_the_chart() -> None:
    chart = YAML(typ="safe").load((ROOT / "charts" / "omni-operator" / "Chart.yaml").read_text(encoding="utf-8"))
    (oldest,) = re.findall(r">=(\d+\.\d+)\.0", chart["kubeVersion"])
    assert matrix()["Kubernetes"][2].split(",")[0] == oldest


def test_users_are_told_to_install_the_tested_kuberay() -> None:
    (told,) = re.findall(r"kuberay-operator --version (\S+)", (ROOT / "docs/start/kubernetes.md").read_text("utf-8"))
    assert told == matrix()["KubeRay"][0]


def test_users_of_the_wheel_are_told_the_override_of_the_lock() -> None:
    lines = (ROOT / "requirements" / "overrides.in").read_text(encoding="utf-8").splitlines()
    (override,) = [line for line in lines if line and not line.startswith("#")]
    assert f"`{override}`" in (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
