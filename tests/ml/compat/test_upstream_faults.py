"""Each patch is still needed: without it, upstream fails as documented. If a test fails, remove the patch.

The faults are reproduced in a new interpreter, because an applied patch stays. All share it: imports take most of its
time.
"""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# The first one prevents the patch that the platform applies, so it comes before every import of vllm_omni.
FAULTS = {
    "sdpa_forward": """
from verl_omni.compat import sdpa_forward
sdpa_forward.apply = lambda: None
import torch
from vllm_omni.diffusion.attention.backends.sdpa import SDPAImpl
attention = SDPAImpl(num_heads=1, head_size=8, softmax_scale=1.0, causal=False)
q = torch.zeros(1, 4, 1, 8)
try:
    attention.forward(q, q, q)
except NotImplementedError:
    print("FAULT sdpa_forward")
""",
    "slot_mapping": """
import torch
from vllm.utils.cpu_triton_utils import compute_slot_mapping_kernel
starts, positions = torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
try:
    compute_slot_mapping_kernel[(2,)](
        1, 1, starts, positions, torch.zeros(1, 1, dtype=torch.int32), 1, 4, torch.zeros(1, dtype=torch.int64)
    )
except AttributeError:
    print("FAULT slot_mapping")
""",
    "stage_lora": """
from vllm_omni.config.omni_config import _LLM_STAGE_ENGINE_FIELDS
if "enable_lora" not in _LLM_STAGE_ENGINE_FIELDS:
    print("FAULT stage_lora")
""",
    "VLLMOmniHijack": """
from types import SimpleNamespace
from vllm_omni.diffusion.lora.manager import DiffusionLoRAManager
from verl_omni.utils.vllm_omni import OmniTensorLoRARequest
request = OmniTensorLoRARequest(
    lora_name="123", lora_int_id=123, lora_path="memory_only", peft_config={"r": 1}, lora_tensors={}
)
manager = SimpleNamespace(_expected_lora_modules=["to_q"], pipeline=object(), dtype=__import__("torch").float32)
try:
    DiffusionLoRAManager._load_adapter(manager, request)
except Exception:
    print("FAULT VLLMOmniHijack")
""",
}


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """Lines of an interpreter that has tried every fault."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(FAULTS.values())],
        env={**os.environ, "VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("fault", FAULTS)
def test_upstream_still_has_the_fault(printed: list[str], fault: str) -> None:
    assert f"FAULT {fault}" in printed, "upstream works without the patch"
