"""`python -m e2e.programs [control-plane | nodes]`: build or fetch what tests on clusters need."""

import argparse
import os
import sys
import time
from collections.abc import Callable

from rich.console import Console

from e2e import helm, prometheus, registry
from e2e.cache import prune
from e2e.cluster.bare import machine
from e2e.cluster.bare.provider import PROGRAMS
from e2e.cluster.errors import ClusterError, ToolMissing
from e2e.cluster.kind.provider import KindCluster
from e2e.cluster.paths import cache
from e2e.cluster.tools import HEALTH, KIND, KUBE, KUEUE, KWOK, S3, Say, ensure, kuberay_files
from e2e.system import images


def control_plane(say: Say) -> None:
    """For a control plane alone. Begins with what tests in other lanes wait for."""
    prometheus.ensure(say)
    registry.ensure(say)
    ensure((S3,), say)
    ensure((KUBE, KWOK, KIND, HEALTH), say)
    helm.helm(say)
    kuberay_files(say)


def nodes(say: Say) -> None:
    """Programs and images of nodes, and the images of operator and training."""
    machine.install_packages(say)
    registry.skopeo(say)
    ensure((*PROGRAMS, KUEUE), say)
    images(say)
    KindCluster(say).prepare()


PARTS: dict[str, Callable[[Say], None]] = {"control-plane": control_plane, "nodes": nodes}


def main() -> int:
    """Make the requested parts, or all; existing ones are not touched.

    A part that this machine cannot make is skipped with the reason; with `E2E_REQUIRED` that is a failure.
    """
    parser = argparse.ArgumentParser(prog="python -m e2e.programs")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar=" | ".join(PARTS))
    parser.add_argument("--keep-sources", action="store_true", help="keep Go's caches, because another part follows")
    chosen = parser.parse_args()
    parts = chosen.parts or list(PARTS)
    # Messages of builds contain brackets and colons.
    console = Console(markup=False, emoji=False, highlight=False)
    started = time.monotonic()
    code = 0

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - started:6.1f} s  {text}", soft_wrap=True)

    for part in parts:
        try:
            PARTS[part](say)
        except ToolMissing as error:
            say(f"tests that need the {part} are left out: {error}")
            code = code or int(bool(os.environ.get("E2E_REQUIRED")))
        except ClusterError as error:
            say(str(error))
            code = 1
    if code == 0 and not chosen.keep_sources:
        prune(cache(), say)
    return code


if __name__ == "__main__":
    sys.exit(main())
