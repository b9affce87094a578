"""The worker extension and LoRA requests with tensors, without an engine."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.ml.workers.rollout.fake_engine import server_with
from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the engine's modules take half a minute to import

CONFIG = {"r": 4}


def worker(pipeline: Any = "pipeline", device: Any = "cpu") -> Any:
    from verl_omni.workers.rollout.vllm_rollout.utils import vLLMOmniColocateWorkerExtension

    extension: Any = object.__new__(vLLMOmniColocateWorkerExtension)
    extension.device = device
    extension.local_rank = 2
    extension.model_runner = SimpleNamespace(pipeline=SimpleNamespace() if pipeline else None)
    return extension


def test_the_socket_handle_names_job_replica_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VERL_RAY_JOB_ID", "VERL_REPLICA_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert worker()._get_zmq_handle() == "ipc:///tmp/rl-colocate-zmq-0-replica-0-rank-2.sock"
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")
    monkeypatch.setenv("VERL_REPLICA_RANK", "3")
    assert worker()._get_zmq_handle() == "ipc:///tmp/rl-colocate-zmq-01000000-replica-3-rank-2.sock"


@pytest.mark.parametrize("missing", ["pipeline", "device"])
def test_an_update_before_the_model_is_loaded_is_refused(missing: str) -> None:
    with pytest.raises(RuntimeError, match="weight update for a worker without a pipeline or a language model"):
        worker(**{missing: None}).update_weights_from_ipc()


def test_an_adapter_update_needs_config_and_base_and_a_pending_config_is_used_once() -> None:
    taken: list[Any] = []

    def made() -> Any:
        extension = worker()
        extension._receive_adapter = lambda handle, config, deadline: taken.append(("adapter", config)) or {}
        extension.commit_adapter = lambda global_steps: {}
        extension._receive_full = lambda handle, deadline: taken.append("full")
        return extension

    extension = made()
    extension.update_weights_from_ipc()
    extension.update_weights_from_ipc(base_sync_done=True)
    extension.update_weights_from_ipc(peft_config=CONFIG)
    assert taken == ["full"] * 3
    taken.clear()
    extension.update_weights_from_ipc(peft_config=CONFIG, base_sync_done=True)
    for arguments in ({}, {"base_sync_done": True}):
        extension.set_pending_lora_peft_config({"r": 8})
        for _ in range(2):
            extension.update_weights_from_ipc(**arguments)
    assert taken == [("adapter", CONFIG), ("adapter", {"r": 8}), "full", ("adapter", {"r": 8}), "full"]


def receiving(rank: int, fault: Exception | None = None) -> Any:
    """A worker that receives one tensor, or fails to; `served` is the adapter that it serves."""
    extension = worker()
    extension.served = "old"

    def receive(consume: Any, handle: str, deadline: float) -> Any:
        if fault is not None:
            raise fault
        consume([("a", torch.tensor([rank]))])
        return ["a"], {"buckets": 1, "bytes": 8}

    def swap(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        extension.served = int(tensors["a"])
        return 1

    extension._receive_buckets = receive
    extension._swap_adapter = swap
    return extension


def server_of(*workers: Any) -> Any:
    """The server whose engine has these workers; calls and replies as vLLM-Omni's."""

    def reply(each: Any, method: str, args: Any, kwargs: Any) -> Any:
        try:
            return getattr(each, method)(*args, **(kwargs or {}))
        except Exception as error:
            return {"supported": False, "error": str(error)}

    async def call(*, method: str, timeout: Any, args: Any = (), kwargs: Any = None) -> list[Any]:
        return [[reply(extension, method, args, kwargs) for extension in workers]]

    return server_with(SimpleNamespace(collective_rpc=call))


async def collective_update(server: Any) -> Any:
    update = {"peft_config": CONFIG, "base_sync_done": True, "global_steps": 4}
    return await server.collective_rpc("update_weights_from_ipc", kwargs=update)


async def test_every_worker_receives_an_adapter_before_one_serves_it() -> None:
    both = [receiving(0), receiving(1)]
    reports = await collective_update(server_of(*both))
    assert reports == [{"tensors": 1, "buckets": 1, "bytes": 8, "lora": True, "bound": 1}] * 2
    assert [extension.served for extension in both] == [0, 1]
    assert [extension.model_runner.pipeline.weights_version for extension in both] == [4, 4]
    first = receiving(0)
    second = receiving(1, OSError("the sender of rank 1 is gone"))
    with pytest.raises(RuntimeError, match="failed in 1 of 2 workers: the sender of rank 1 is gone"):
        await collective_update(server_of(first, second))
    assert (first.served, second.served) == ("old", "old"), "the ranks have different adapters"


async def test_requests_fail_while_workers_have_different_adapters() -> None:
    def out_of_memory(*_: Any) -> int:
        raise MemoryError("no memory")

    first = receiving(0)
    second = receiving(1)
    server = server_of(first, second)
    swap = second._swap_adapter
    second._swap_adapter = out_of_memory
    with pytest.raises(RuntimeError, match="failed in 1 of 2 workers: no memory"):
        await collective_update(server)
    assert (first.served, second.served) == (0, "old")
    with pytest.raises(PartialWeights, match=r"different adapters, until a weight update succeeds: .* no memory"):
        await server._lora_request()
    second._swap_adapter = swap
    await collective_update(server)
    assert await server._lora_request() is None and (first.served, second.served) == (0, 1)
    alone = server_of(receiving(0))
    call = alone.engine.collective_rpc

    async def commit_fails(*, method: str, **given: Any) -> Any:
        return [[{"error": "no memory"}]] if method == "commit_adapter" else await call(method=method, **given)

    alone.engine.collective_rpc = commit_fails
    with pytest.raises(RuntimeError, match="no memory"):
        await collective_update(alone)
    assert await alone._lora_request() is None, "one worker has one adapter: the old one"


def test_an_adapter_of_an_earlier_update_is_not_committed() -> None:
    extension = receiving(0)
    extension.update_weights_from_ipc(peft_config=CONFIG, base_sync_done=True, stage_adapter=True)
    assert extension.served == "old"
    extension._receive_full = lambda handle, deadline: {}
    extension.update_weights_from_ipc()
    with pytest.raises(WeightSyncError, match="no adapter is staged"):
        extension.commit_adapter()
    assert extension.served == "old"


def test_a_pipeline_without_lora_layers_is_refused() -> None:
    from vllm_omni.diffusion.lora.manager import DiffusionLoRAManager

    from verl_omni.utils.vllm_omni.utils import OmniTensorLoRARequest, VLLMOmniHijack

    for _ in range(2):
        VLLMOmniHijack.hijack()
    manager: Any = object.__new__(DiffusionLoRAManager)
    manager._expected_lora_modules = []
    request = OmniTensorLoRARequest(
        lora_name="123",
        lora_int_id=123,
        lora_path="simon_lora_path",
        peft_config=CONFIG,
        lora_tensors={"a.lora_A.weight": torch.zeros(1)},
    )
    with pytest.raises(ValueError, match=r"^No supported LoRA modules found in the diffusion pipeline\.$"):
        manager._load_adapter(request)


def test_verls_tensor_requests_for_language_models_are_loaded() -> None:
    from verl.utils.vllm import TensorLoRARequest
    from vllm.config.lora import LoRAConfig
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    from verl_omni.utils.vllm_omni.utils import VLLMOmniHijack

    VLLMOmniHijack.hijack()
    manager: Any = object.__new__(LRUCacheWorkerLoRAManager)
    manager._adapter_manager = SimpleNamespace(
        supported_lora_modules=["q_proj"], packed_modules_mapping={}, model=object()
    )
    manager.lora_config = LoRAConfig(max_lora_rank=8, lora_dtype=torch.float32)
    manager._lora_model_cls = LoRAModel
    manager.vocab_size = 10
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{module}.lora_A.weight": torch.ones(4, 6), f"{module}.lora_B.weight": torch.ones(5, 4)}
    config = {**CONFIG, "lora_alpha": 4, "target_modules": ["q_proj"]}
    request = TensorLoRARequest("7", 7, "nowhere", peft_config=config, lora_tensors=tensors)
    (adapter,) = manager._load_adapter(request).loras.values()
    assert adapter.lora_a.shape == (4, 6) and adapter.lora_b.shape == (5, 4)
