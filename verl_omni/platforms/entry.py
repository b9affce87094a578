"""Entry points that offer the host CPU as a platform, and step aside where an accelerator is found.

vLLM resolves its platform while `import vllm` still runs, so nothing here imports vllm_omni, and the
functions carry names that no submodule has (vLLM swallows the error that a clash would raise).
"""

from __future__ import annotations


def _accelerator_present() -> bool:
    from vllm.platforms import builtin_platform_plugins

    return any(probe() for probe in builtin_platform_plugins.values())


def vllm_cpu_platform() -> str | None:
    """Qualified name of vLLM's platform for a host without an accelerator, or None."""
    return None if _accelerator_present() else "verl_omni.platforms.cpu.vllm_platform.HostCpuPlatform"


def vllm_omni_cpu_platform() -> str | None:
    """Qualified name of vLLM-Omni's platform for a host without an accelerator, or None."""
    return None if _accelerator_present() else "verl_omni.platforms.cpu.vllm_omni_platform.HostCpuOmniPlatform"
