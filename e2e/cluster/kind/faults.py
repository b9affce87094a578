"""What is wrong with a machine where kind makes no cluster, in one sentence. PURE."""

import re

# What a container engine, kubeadm or a kubelet prints, and what to do.
FAULTS = (
    (
        r"cgroups? in hybrid mode not supported",
        "the container runtime crun cannot use this machine's cgroup v1: install runc (Debian: apt-get install runc)",
    ),
    (
        r"setrlimit|set rlimit|error setting rlimit",
        "this machine does not let limits (ulimit) be raised: remove --ulimit and default_ulimits from the settings "
        "of the container engine",
    ),
    (r"no space left on device", "the disk is full: a cluster of four nodes needs 3 GB; make cache shows what is kept"),
    (
        r"kernel does not support overlay|overlay.{0,60}(not supported|invalid argument|wrong fs type)",
        "overlayfs does not work in the cache's file system: set XDG_CACHE_HOME to a folder on ext4 or xfs",
    ),
    (
        r"running kind with rootless provider",
        "rootless containers cannot be nodes here: run as root, or use Docker",
    ),
)


def explain(output: str) -> str | None:
    """The sentence about the first known fault in what programs printed."""
    for pattern, sentence in FAULTS:
        if re.search(pattern, output, re.IGNORECASE | re.DOTALL):
            return sentence
    return None
