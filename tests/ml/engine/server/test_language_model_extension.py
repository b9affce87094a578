"""`vLLMOmniColocateWorkerExtension` in vLLM's own engine of a language model: updates change what it writes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ml.engine.replica_driver import announced
from verl_omni.weight_sync import ipc

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

EXTENSION = "verl_omni.workers.rollout.vllm_rollout.utils.vLLMOmniColocateWorkerExtension"
RANK = 4
TOKENS = 12


@dataclass
class Running:
    """vLLM with a tiny Qwen2, and the same model of transformers."""

    engine: Any
    model: Any
    ids: list[int]

    def write(self, *, adapter: bool = False) -> list[int]:
        """Greedy tokens after the prompt."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        from verl_omni.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH

        self.engine.reset_prefix_cache()
        (answer,) = self.engine.generate(
            [{"prompt_token_ids": self.ids}],
            SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=TOKENS),
            lora_request=LoRARequest(VLLM_LORA_NAME, VLLM_LORA_INT_ID, VLLM_LORA_PATH) if adapter else None,
            use_tqdm=False,
        )
        return list(answer.outputs[0].token_ids)

    def expected(self) -> list[int]:
        """Greedy tokens of transformers."""
        given = torch.tensor([self.ids])
        made = self.model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=TOKENS)
        found: list[int] = made[0, len(self.ids) :].tolist()
        return found

    def send(self, weights: Iterable[tuple[str, Tensor]], adapter: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send weights as a trainer does; the worker's answer."""
        handle, told = announced(secrets.token_hex(4), 20.0, adapter=adapter)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(
                ipc.send, iter(weights), handle=handle, bucket_bytes=1 << 13, device=None, deadline=20.0
            )
            (answer,) = self.engine.collective_rpc("update_weights_from_ipc", kwargs=told)
            sending.result(timeout=30)
        found: dict[str, Any] = answer
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tests.ml.engine.server.tiny_qwen2 import make_tiny_qwen2
    from verl_omni.trainer import startup

    startup.prepare_environment(has_accelerator=False)
    for name in ("VERL_RAY_JOB_ID", "VERL_REPLICA_RANK"):
        os.environ.pop(name, None)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is in this process, and ends with it
    path: Path = tmp_path_factory.mktemp("tiny") / "qwen2"
    make_tiny_qwen2(path)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from vllm import LLM

    engine = LLM(
        str(path),
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=2,
        gpu_memory_utilization=0.1,
        enable_lora=True,
        max_lora_rank=8,
        worker_extension_cls=EXTENSION,
        distributed_executor_backend="uni",
    )
    model = AutoModelForCausalLM.from_pretrained(path)
    model.generation_config.eos_token_id = None
    yield Running(engine, model, AutoTokenizer.from_pretrained(path)("two blue square on the left").input_ids)
    engine.llm_engine.engine_core.shutdown()


def test_full_weights_reach_the_model_and_change_what_it_writes(running: Running) -> None:
    before = running.write()
    assert before == running.expected()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in running.model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std().nan_to_num(0) * 0.5)
    answer = running.send([(name, tensor.clone()) for name, tensor in running.model.state_dict().items()])
    assert not answer["lora"] and answer["tensors"] == len(running.model.state_dict())
    assert running.write() == running.expected() != before


def test_an_adapter_reaches_the_model_and_changes_what_it_writes(running: Running) -> None:
    from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model

    plain = running.write()
    config = LoraConfig(
        r=RANK, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False
    )
    torch.manual_seed(4)
    inject_adapter_in_model(config, running.model)
    with torch.no_grad():
        for name, parameter in running.model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.5)
    tensors = get_peft_model_state_dict(running.model)
    answer = running.send([(name, tensor.clone()) for name, tensor in tensors.items()], config.to_dict())
    assert answer["lora"] and answer["bound"] > 0
    assert running.write(adapter=True) == running.expected() != plain
    assert running.write() == plain, "requests without the adapter are answered by the base model"
