"""`python -m e2e.programs`: build or fetch what tests on clusters need, with progress, before any test waits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from rich.console import Console

from e2e import helm, prometheus
from e2e.cluster.bare import machine
from e2e.cluster.bare.provider import PROGRAMS
from e2e.cluster.errors import ClusterError, ToolMissing
from e2e.cluster.tools import KUBE, KWOK, Say, ensure, kuberay_files
from e2e.system import images


def control_plane(say: Say) -> None:
    """For a control plane alone."""
    ensure((KUBE, KWOK), say)
    helm.helm(say)
    kuberay_files(say)
    prometheus.ensure(say)


def whole_cluster(say: Say) -> None:
    """For nodes that run pods: what a node consists of, and the images of operator and training."""
    machine.install_packages(say)
    ensure(PROGRAMS, say)
    images(say)


STAGES: tuple[tuple[str, Callable[[Say], None]], ...] = (
    ("a control plane", control_plane), ("whole clusters", whole_cluster),
)  # fmt: skip


def main() -> int:
    """Have all of it ready; what is there is not touched. A machine that cannot is no failure, unless E2E_REQUIRED."""
    # What builds say has brackets and colons of its own.
    console, started, code = Console(markup=False, emoji=False, highlight=False), time.monotonic(), 0

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - started:6.1f} s  {text}", soft_wrap=True)

    for name, make in STAGES:
        try:
            make(say)
        except ToolMissing as error:
            say(f"tests on {name} are left out: {error}")
            code = code or int(bool(os.environ.get("E2E_REQUIRED")))
        except ClusterError as error:
            say(str(error))
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
