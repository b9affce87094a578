"""PURE: where verl looks for the port at which training workers meet (torch.distributed)."""

from __future__ import annotations

import random

# verl looks for a free port seconds before the first worker listens on it. These are below the kernel's for outgoing
# connections (from 32768 on), of which Ray's servers have some too, and those of Kubernetes' Services (from 30000 on),
# and above those of Ray's workers (up to 19999).
RANGE = range(20000, 30000)


def search_range(chance: random.Random) -> list[int]:
    """`master_port_range` of verl's worker group: from a random port on, so that two runs of a machine differ."""
    return [chance.choice(RANGE[: len(RANGE) // 2]), RANGE.stop]
