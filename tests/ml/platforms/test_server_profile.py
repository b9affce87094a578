"""Platform-specific settings of a rollout server."""

import importlib
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_omni.platforms import server_profile
from verl_omni.platforms.server_profile import CPU_PROFILE, NPU_PROFILE, ServerProfile


@pytest.mark.parametrize(
    ("profile", "executor", "changed"),
    [
        (CPU_PROFILE, "uni", True),
        (CPU_PROFILE, "mp", False),
        (CPU_PROFILE, None, False),
        (ServerProfile(), "uni", False),
    ],
)
def test_only_a_cpu_server_with_its_worker_as_a_thread_switches_threads_faster(
    profile: ServerProfile, executor: str | None, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    profile.tune_process(executor=executor)
    assert intervals == ([profile.uni_switch_seconds] if changed else [])


FLASH = "flash_attn.FlashAttentionBackend"
TORCH = "sdpa.SDPABackend"


@pytest.fixture
def npu_platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM-Omni's own platform of Ascend NPUs, on a stand-in for the vendor's, without MindIE-SD."""
    from vllm.platforms.interface import Platform

    vendor = types.ModuleType("vllm_ascend.platform")
    vendor.NPUPlatform = Platform  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm_ascend", types.ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.platform", vendor)
    platform = importlib.import_module("vllm_omni.platforms.npu.platform").NPUOmniPlatform
    yield platform
    sys.modules.pop("vllm_omni.platforms.npu.platform", None)


def test_on_an_npu_the_engine_chooses_flash_attention_because_it_would_not_replace_a_named_one(
    npu_platform: Any,
) -> None:
    assert find_spec("mindiesd") is None
    choose = npu_platform.get_diffusion_attn_backend_cls
    for name in ("FLASH_ATTN", "FLASH_ATTN_3_HUB"):
        assert choose(name, 64).endswith(FLASH), "without its package"
        assert NPU_PROFILE.attention_config(name) is None
        assert ServerProfile().attention_config(name) == {"default": {"backend": name}}
    assert choose(None, 64).endswith(TORCH)
    assert NPU_PROFILE.attention_config("TORCH_SDPA") == {"default": {"backend": "TORCH_SDPA"}}

    from vllm_omni.diffusion.attention.backends.flash_attn import FlashAttentionImpl

    rows = torch.zeros(1, 2, 1, 64)
    with pytest.raises(ModuleNotFoundError, match="mindiesd"):
        FlashAttentionImpl(1, 64, 1.0).forward_npu(rows, rows, rows)


def test_the_profile_is_that_of_the_platform_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm_omni.platforms

    for kind, profile in (("cpu", CPU_PROFILE), ("npu", NPU_PROFILE), ("cuda", ServerProfile())):
        monkeypatch.setattr(
            vllm_omni.platforms, "current_omni_platform", SimpleNamespace(device_type=kind), raising=False
        )
        assert server_profile.server_profile() == profile
