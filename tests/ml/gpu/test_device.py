"""On an NVIDIA GPU: its own platform is used, weights are sent by device IPC, layers compile, the whole job runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.ml.gpu import sending
from tests.ml.workers.actor import test_actor as grpo
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.buffers import SEGMENT_PREFIX
from verl_omni.weight_sync.checks import StagedTensors
from verl_omni.workers.config import DiffusionFSDPConfig, DiffusionMixedPrecisionConfig

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[3]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("bucket_bytes", [1 << 12, 1 << 20])
@pytest.mark.parametrize(
    "device",
    [
        # So that the test itself is tried without a GPU.
        pytest.param(torch.device("cpu"), marks=pytest.mark.slow),
        pytest.param(DEVICE, marks=pytest.mark.gpu),
    ],
    ids=str,
)
def test_weights_are_sent_between_processes_by_device_ipc(
    tmp_path: Path, device: torch.device, bucket_bytes: int
) -> None:
    handle = f"ipc://{tmp_path}/weights.sock"
    sender = subprocess.Popen([sys.executable, sending.__file__, str(device), handle, str(bucket_bytes)])
    staging = StagedTensors()
    ipc.receive(staging.add, handle=handle, device=device, deadline=sending.DEADLINE)
    assert sender.wait(60) == 0
    for name, tensor in sending.weights():
        assert torch.equal(staging.tensors[name].cpu(), tensor)
    left = [*Path("/dev/shm").glob(f"{SEGMENT_PREFIX}*"), *Path("/dev/shm").glob(f"torch_{sender.pid}_*")]
    assert left == [], "torch_*: where CUDA IPC counts who has a buffer"


@pytest.mark.gpu
def test_the_cpu_platform_is_not_used() -> None:
    from verl_omni.platforms import entry

    assert entry.vllm_cpu_platform() is None
    assert entry.vllm_omni_cpu_platform() is None
    script = "from verl.plugin.platform import get_platform; print(get_platform().device_name)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert completed.stdout.split()[-1] == "cuda"


@pytest.mark.gpu
def test_layers_compiled_for_the_device_give_the_update_of_others(tmp_path: Path) -> None:
    """In bfloat16, by inductor. After three steps of at most 1e-2, weights differ by less than 1e-3 on average."""
    make_tiny_sd3(tmp_path / "model")
    half = DiffusionMixedPrecisionConfig(param_dtype="bfloat16")
    results = []
    for compiled in (False, True):
        fsdp = DiffusionFSDPConfig(use_torch_compile=compiled, mixed_precision=half)
        actor = grpo.make(tmp_path / "model", device=DEVICE, fsdp_config=fsdp)
        metrics = [actor.update(grpo.batch(), **grpo.SAMPLER) for _ in range(3)]
        weights = torch.cat([tensor.flatten().cpu() for _, tensor in actor.weights("lora")])
        results.append(([step["actor/grad_norm"] for step in metrics], weights))
    (norms, weights), (compiled_norms, compiled_weights) = results
    assert compiled_norms == pytest.approx(norms, rel=2e-2)
    assert 0 < (weights - compiled_weights).abs().mean() < 1e-3, "equal to the last bit: nothing was compiled"


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [True, False])
def test_the_main_job_runs_on_the_gpu(tmp_path: Path, lora: bool) -> None:
    job = yaml.safe_load((ROOT / "examples" / "red-grpo.yaml").read_text())
    spec = job["spec"]
    spec["model"]["base"] = str(ROOT / "examples" / spec["model"]["base"])
    for files in ("train", "validation"):
        spec["data"][files] = [str(ROOT / "examples" / path) for path in spec["data"][files]]
    if not lora:
        del spec["model"]["lora"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("drl")),
            "run",
            str(tmp_path / "job.yaml"),
            "--runs",
            str(tmp_path),
            "--plain",
            "--steps",
            "3",
        ],
        timeout=800,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "the policy is trained on 1 x cuda" in done.stdout
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "red-grpo" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["weights/version"] for line in lines] == [0, 1, 2, 3]
    for line in lines[1:]:
        assert line["actor/grad_norm"] > 0
        # Trainer and engine may choose other kernels; the clip range is 1e-4 of the ratio, log-probabilities are means.
        assert line["rollout_corr/mean_abs_diff"] < 1e-3
