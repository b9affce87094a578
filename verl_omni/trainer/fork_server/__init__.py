"""Ray workers forked from a process that has imported everything, instead of started and importing it each.

Ray starts a worker with the job's `py_executable`. Here that is `client.py`, a small program that asks `server.py`
to fork and then lives as long as the fork does. What this rests on, and where it is not used: docs/adr/0007.
"""

from .cluster import ForkingCluster, possible

__all__ = ["ForkingCluster", "possible"]
