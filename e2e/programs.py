"""`python -m e2e.programs`: build or fetch what tests on a control plane need, with progress, before any test waits."""

from __future__ import annotations

import os
import sys
import time

from rich.console import Console

from e2e import helm, prometheus
from e2e.cluster.errors import ClusterError, ToolMissing
from e2e.cluster.tools import KUBE, KWOK, ensure, kuberay_files


def main() -> int:
    """Have all of it ready; what is there is not touched. A machine that cannot is no failure, unless E2E_REQUIRED."""
    console, started = Console(), time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - started:6.1f} s  {text}", soft_wrap=True, highlight=False)

    try:
        ensure((KUBE, KWOK), say)
        helm.helm(say)
        kuberay_files(say)
        prometheus.ensure(say)
    except ToolMissing as error:
        say(f"tests that need it are left out: {error}")
        return int(bool(os.environ.get("E2E_REQUIRED")))
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
