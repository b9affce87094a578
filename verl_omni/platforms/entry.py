"""Entry points of the CPU platform, which is used only on a machine without an accelerator.

vLLM resolves its platform during `import vllm`, so this module must not import vllm_omni, and no function may have the
name of a submodule (vLLM ignores the error that such a clash raises).
"""

from __future__ import annotations


def _accelerator_present() -> bool:
    from vllm.platforms import builtin_platform_plugins

    return any(probe() for probe in builtin_platform_plugins.values())


def vllm_cpu_platform() -> str | None:
    """Qualified name of vLLM's CPU platform; None on a machine with an accelerator."""
    return None if _accelerator_present() else "verl_omni.platforms.cpu.vllm_platform.OutOfTreeCpuPlatform"


def vllm_omni_cpu_platform() -> str | None:
    """Qualified name of vLLM-Omni's CPU platform; None on a machine with an accelerator."""
    return None if _accelerator_present() else "verl_omni.platforms.cpu.vllm_omni_platform.OmniCpuPlatform"
