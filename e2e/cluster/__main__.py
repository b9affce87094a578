"""`python -m e2e.cluster up|down`: what `make cluster` and `make cluster-down` call.

`OMNI_CLUSTER` may say `bare` or `kind`; else it is kind where a Docker daemon answers.
"""

from __future__ import annotations

import os
import sys
import time

from .bare.provider import BareCluster
from .errors import ClusterError
from .kind.engine import docker_answers
from .kind.provider import KindCluster
from .paths import cache
from .provider import Cluster
from .tools import Say, Tools


def choose(kind: bool, say: Say) -> Cluster:
    """kind where Docker answers; otherwise nodes as network namespaces."""
    return KindCluster(say) if kind else BareCluster(say=say)


def chosen(say: Say) -> Cluster:
    """The provider that `OMNI_CLUSTER` names, or that this machine has."""
    return choose(os.environ.get("OMNI_CLUSTER", "kind" if docker_answers() else "bare") == "kind", say)


def main(arguments: list[str]) -> int:
    """Run one command; 0 if it did what it says."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    cluster = chosen(say)
    try:
        match arguments:
            case ["up"]:
                path = cluster.create()
                say("the cluster is ready. To look at it:")
                print(f"export KUBECONFIG={path} PATH={Tools(cache()).bin}:$PATH\nkubectl get nodes")
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
