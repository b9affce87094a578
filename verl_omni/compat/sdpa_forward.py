"""Patch: vLLM-Omni's SDPA attention works on an out-of-tree platform.

Fault: `AttentionImpl.forward` (vllm_omni/diffusion/attention/backends/abstract.py) dispatches on a fixed
list of platforms and raises on every out-of-tree platform.
Remove when: `AttentionImpl.forward` reaches `_forward_impl` on an unknown platform.
"""

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})


def apply() -> None:
    """Make `SDPAImpl.forward` the implementation that needs no kernels. Safe to repeat."""
    require("vllm-omni", TESTED, "sdpa_forward")
    from vllm_omni.diffusion.attention.backends.sdpa import SDPAImpl

    SDPAImpl.forward = SDPAImpl._forward_impl
