"""Entry points of the CPU platform, which is used only on a machine without an accelerator.

vLLM resolves its platform during `import vllm`, so this module must not import vllm_omni, and no function may have the
name of a submodule (vLLM ignores the error that such a clash raises).
"""

import os


def _accelerator_present() -> bool:
    from vllm.platforms import builtin_platform_plugins

    return any(probe() for probe in builtin_platform_plugins.values())


def vllm_cpu_platform() -> str | None:
    """Qualified name of vLLM's CPU platform; None on a machine with an accelerator."""
    if _accelerator_present():
        return None
    # vLLM imports humming, which then starts two processes that build programs of CUDA: 6 s of CPU time for each
    # process that imports the engine.
    os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")
    return "verl_omni.platforms.cpu.vllm_platform.OutOfTreeCpuPlatform"


def vllm_omni_cpu_platform() -> str | None:
    """Qualified name of vLLM-Omni's CPU platform; None on a machine with an accelerator."""
    return None if _accelerator_present() else "verl_omni.platforms.cpu.vllm_omni_platform.OmniCpuPlatform"
