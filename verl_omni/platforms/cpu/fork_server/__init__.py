"""Ray workers forked from a process that has already imported the training stack.

Ray starts each worker with `client.py`, a small program that asks `server.py` for a fork and exits when the fork does.
docs/adr/0007 lists the Ray internals that this depends on.
"""

from .cluster import ForkingCluster, can_fork_workers

__all__ = ["ForkingCluster", "can_fork_workers"]
