"""Sleep and wake on an Ascend NPU, with vllm-ascend.

Never run so far: no NPU was available.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.npu, pytest.mark.timeout(900)]

MIB = 1 << 20


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_frees_memory_and_wake_restores_kept_tensors(level: int) -> None:
    from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker
    from vllm_omni.platforms import current_omni_platform

    from verl_omni.workers.rollout.vllm_rollout.npu_utils import vLLMOmniNPUColocateWorkerExtension

    worker: Any = object.__new__(type("Worker", (vLLMOmniNPUColocateWorkerExtension, DiffusionWorker), {}))
    worker.od_config = SimpleNamespace(enable_sleep_mode=True)
    worker._sleep_saved_buffers = {}
    with worker._maybe_get_memory_pool_context("weights"):
        pipeline = torch.nn.Linear(4096, 16384, device="npu")  # 256 MiB
        pipeline.register_buffer("scale", torch.arange(8.0, device="npu"))
    worker.model_runner = SimpleNamespace(pipeline=pipeline, refresh_diffusion_kv_block_table_layout=lambda: None)
    weight = pipeline.weight.detach().cpu()
    scale = pipeline.scale.cpu()
    before = current_omni_platform.get_free_memory()
    assert worker.sleep(level) is True
    assert current_omni_platform.get_free_memory() - before > 200 * MIB
    assert worker.wake_up(["weights"]) is True
    assert torch.equal(pipeline.scale.cpu(), scale)
    if level == 1:
        assert torch.equal(pipeline.weight.detach().cpu(), weight)
