"""Sampling and weight sync on a second device; run by `test_on_a_device.py`."""

import pytest
import torch

from tests.ml.second_device.device import given_back
from verl_omni.pipelines.sde_sampler import Window, denoise
from verl_omni.weight_sync.buckets import device_digest
from verl_omni.weight_sync.buffers import SendBuffer
from verl_omni.weight_sync.checks import StagedTensors
from verl_omni.weight_sync.errors import IncompleteUpdate


@pytest.mark.parametrize("kind", ["sde", "cps", "dance_sde"])
def test_sampling_on_the_device_equals_sampling_on_the_cpu(second: torch.device, kind: str) -> None:
    sigmas = torch.linspace(1, 0, 6)
    start = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    windows = [Window((0, 1, 2, 3, 4), 0.7, kind), Window((1, 3), 0.7, kind, contiguous=False), None]
    sampled = {}
    for where in (torch.device("cpu"), second):
        chances = [torch.Generator().manual_seed(row) for row in range(3)]
        sampled[where.type] = denoise(
            lambda x, t: 0.5 * x + t / 1000, start.to(where), (sigmas[:-1] * 1000).to(where), sigmas, windows, chances
        )
    (here, recorded_here) = sampled["cpu"]
    (there, recorded_there) = sampled[second.type]
    assert there.device == second and torch.allclose(there.cpu(), here, atol=1e-5)
    for row, (on_second, on_cpu) in enumerate(zip(recorded_there, recorded_here, strict=True)):
        if windows[row] is None:
            assert on_second is on_cpu is None
            continue
        assert on_second is not None and on_cpu is not None
        for name in ("latents", "timesteps", "sigmas", "log_probs"):
            assert torch.allclose(getattr(on_second, name).cpu(), getattr(on_cpu, name), atol=1e-5), name


def test_digests_on_the_device_equal_digests_on_the_cpu(second: torch.device) -> None:
    flat = torch.randint(256, (1003,), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    assert device_digest(flat.to(second)) == device_digest(flat)


def test_weights_are_staged_on_the_device(second: torch.device) -> None:
    staging = StagedTensors()
    staging.add([("whole", torch.ones(3, device=second))])
    assert staging.tensors["whole"].device == second
    with pytest.raises(IncompleteUpdate, match="not finite"):
        staging.add([("broken", torch.tensor([1.0, float("nan")]).to(second))])


def test_a_closed_buffer_releases_device_memory(second: torch.device) -> None:
    given_back.clear()
    buffer = SendBuffer(second)
    buffer.tensor = torch.empty(16, dtype=torch.uint8, device=second)
    buffer.close()
    assert buffer.tensor.numel() == 0
    assert second.type == "cuda" or given_back == ["ipc", "cache"]
