"""The notes that Helm prints after an installation: what the cluster lacks, and how to go on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import helm as tool

pytestmark = pytest.mark.cluster

Notes = Callable[..., str]
SERVED = ("--api-versions=ray.io/v1", "--api-versions=diffusionrl.io/v1alpha1")


@pytest.fixture
def notes(helm: Path, tmp_path: Path) -> Notes:
    """Text of NOTES.txt, which `helm template` does not print: a copy of the chart has it in an object."""
    copy = tmp_path / "chart"
    shutil.copytree(tool.CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "NOTES.txt").unlink()
    (copy / "templates" / "_notes.tpl").write_text('{{- define "notes" }}\n' + text + "\n{{- end }}\n")
    (copy / "templates" / "notes.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | toJson }}\n')

    def rendered(*options: str) -> str:
        (rendered_notes,) = (body for body in tool.rendered(helm, *options, chart=copy) if body["kind"] == "Notes")
        return rendered_notes["text"]

    return rendered


def test_notes_without_problems_name_the_next_commands(notes: Notes) -> None:
    text = notes(*SERVED, "--set=jobs.image=rollout:1")
    assert "watches all namespaces" in text
    assert "helm --namespace omni-system test omni" in text
    assert "rollout status deployment/omni-omni-operator" in text
    assert "not installed" not in text
    assert "spec.runtime.image" not in text


def test_a_missing_kuberay_is_named(notes: Notes) -> None:
    text = notes(SERVED[1])
    assert "KubeRay is not installed: until you install it, jobs wait with the reason KubeRayNotInstalled." in text
    assert "Jobs must set spec.runtime.image" in text


def test_a_missing_definition_is_named_if_the_chart_does_not_install_it(notes: Notes) -> None:
    words = "The custom resource definition is not installed (crds.install=false)"
    assert words in notes(SERVED[0], "--set=crds.install=false")
    assert words not in notes(*SERVED, "--set=crds.install=false")
    assert words not in notes(SERVED[0])


def test_watched_namespaces_and_missing_reports_are_named(notes: Notes) -> None:
    text = notes(*SERVED, "--set=watch.namespaces={one,two},reports.enabled=false")
    assert "watches the namespaces one, two." in text
    assert "Running jobs do not report their progress (reports.enabled=false)" in text
