"""Helm, built like the other programs of a test cluster."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.tools import Program, Say, ensure

HELM = Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", note="3 to 10 minutes")


def helm(say: Say = print) -> Path:
    """The program, built where it is missing.

    Raises:
        ToolMissing: it has to be built and there is no Go.
        BuildFailed: the build failed.
    """
    return ensure((HELM,), say).path(HELM)
