"""`python -m e2e.cluster up|down`: what `make cluster` and `make cluster-down` call.

`OMNI_CLUSTER` may say `bare` or `kind`; else it is kind where a Docker daemon answers.
"""

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


def chosen(say: Say) -> Cluster:
    """The provider that `OMNI_CLUSTER` names, or that this machine has: kind where Docker answers."""
    return named(os.environ.get("OMNI_CLUSTER") or ("kind" if docker_answers() else "bare"), say)


def named(provider: str, say: Say) -> Cluster:
    """The provider of this name.

    Raises:
        ClusterError: there is none.
    """
    match provider:
        case "kind":
            return KindCluster(say)
        case "bare":
            return BareCluster(say=say)
        case _:
            raise ClusterError(f"OMNI_CLUSTER={provider}: no cluster of this type; it may say bare or kind")


def main(arguments: list[str]) -> int:
    """Run one command; 0 if it did what it says."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    try:
        cluster = chosen(say)
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
