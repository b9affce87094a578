"""`python -m e2e.cluster up|down|status`: what `make cluster` and `make cluster-down` call."""

from __future__ import annotations

import sys
import time

from .bare.provider import BareCluster
from .errors import ClusterError


def main(arguments: list[str]) -> int:
    """Run one command; 0 if it did what it says."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    cluster = BareCluster(say=say)
    try:
        match arguments:
            case ["up"]:
                path = cluster.create()
                say(f"the cluster is ready: export KUBECONFIG={path}")
            case ["down"]:
                cluster.delete()
                say("the cluster is gone; built programs and images are kept")
            case _:
                print("say up or down")
                return 2
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
