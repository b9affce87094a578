"""Patch: give vLLM-Omni's SDPA attention a forward that works out of tree.

Fault: `AttentionImpl.forward` (vllm_omni/diffusion/attention/backends/abstract.py) dispatches on a closed
list of platforms and raises on any other, an out-of-tree one too.
Remove when: `AttentionImpl.forward` reaches `_forward_impl` on an unknown platform.
"""

from __future__ import annotations

from verl_omni.compat.versions import require

TESTED = frozenset({"0.28.0"})


def apply() -> None:
    """Let `SDPAImpl.forward` be the one implementation that needs no kernels. Safe to repeat."""
    require("vllm-omni", TESTED, "sdpa_forward")
    from vllm_omni.diffusion.attention.backends.sdpa import SDPAImpl

    SDPAImpl.forward = SDPAImpl._forward_impl
