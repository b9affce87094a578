"""Hooks that verl's server and replica call while they start."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from PIL import EpsImagePlugin

from tests.ml.workers.rollout.fake_engine import command_line
from verl_omni.pipelines.registry import FAMILIES
from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the server's module takes half a minute to import

MODEL = Path(__file__).parents[5] / "examples" / "shapes-sd3"
ROLLOUT = "verl_omni.workers.config.DiffusionRolloutConfig"
PACKAGE = "verl_omni.workers.rollout.vllm_rollout"


def rollout(output_mode: str | None = None, **settings: Any) -> Any:
    engine = {"vllm_omni": {"output_mode": output_mode, "custom_pipeline": "mine.Pipeline", "stage_init_timeout": 9}}
    return OmegaConf.create({"_target_": ROLLOUT, "engine_kwargs": engine, **settings})


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    """Config and tokenizer of a language model."""
    from transformers import AutoTokenizer, Qwen2Config

    AutoTokenizer.from_pretrained(MODEL / "tokenizer").save_pretrained(tmp_path)
    config = Qwen2Config(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=64)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(tmp_path)
    return tmp_path


def server(config: Any, model: Any) -> Any:
    """A server that has read its settings, without the rest of verl's constructor."""
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniHttpServer

    http_server: Any = object.__new__(vLLMOmniHttpServer)
    http_server.config = http_server._init_config(config)
    http_server.model_config = http_server._init_model_config(model)
    http_server._validate_configs()
    return http_server


def diffusion_server(**settings: Any) -> Any:
    target = {"_target_": "verl_omni.workers.config.DiffusionModelConfig", "path": str(MODEL)}
    return server(rollout(**settings), OmegaConf.create(target))


def language_model_server(folder: Path, **settings: Any) -> Any:
    target = {"_target_": "verl.workers.config.HFModelConfig", "path": str(folder)}
    return server(rollout("ar", **settings), OmegaConf.create(target))


def test_a_server_of_a_diffusion_model() -> None:
    from verl_omni.workers.config import DiffusionModelConfig

    rollout_server = diffusion_server()
    assert isinstance(rollout_server.model_config, DiffusionModelConfig)
    assert rollout_server.config.seed == 0, "verl adds the replica's rank to it"
    assert rollout_server.config.max_model_len is None
    assert rollout_server._get_override_generation_config() == {}
    engine_kwargs = dict(rollout_server.config.engine_kwargs["vllm_omni"])
    rollout_server._preprocess_engine_kwargs(engine_kwargs)
    assert rollout_server.config.engine_kwargs["vllm_omni"] == {"distributed_executor_backend": "uni"}, (
        "on a CPU, unless given"
    )
    assert engine_kwargs == {}, "verl's command line would lose them"
    assert (rollout_server._get_engine_kwargs_key(), rollout_server._get_wake_up_tags()) == ("vllm_omni", ["weights"])
    assert rollout_server._get_cli_description() == "vLLM-Omni CLI"
    assert [module.__name__ for module in rollout_server._get_cli_modules()] == ["vllm_omni.entrypoints.cli.serve"]


def test_a_server_of_a_language_model(language_model: Path) -> None:
    from verl.workers.config import HFModelConfig

    rollout_server = language_model_server(language_model, prompt_length=20, response_length=12, temperature=0.5)
    assert isinstance(rollout_server.model_config, HFModelConfig)
    assert rollout_server.config.max_model_len == 32
    assert language_model_server(language_model, max_model_len=7).config.max_model_len == 7
    assert rollout_server._get_override_generation_config()["temperature"] == 0.5
    engine_kwargs = dict(rollout_server.config.engine_kwargs["vllm_omni"])
    rollout_server._preprocess_engine_kwargs(engine_kwargs)
    assert engine_kwargs == {"stage_init_timeout": 9, "distributed_executor_backend": "uni"}


def test_the_worker_extension_depends_on_device_and_mode(language_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils import device

    plain = f"{PACKAGE}.utils.vLLMOmniColocateWorkerExtension"
    ascend = f"{PACKAGE}.npu_utils.vLLMOmniNPUColocateWorkerExtension"
    servers = diffusion_server(), language_model_server(language_model)
    assert [rollout_server._get_worker_extension_cls() for rollout_server in servers] == [plain, plain]
    monkeypatch.setattr(device, "is_torch_npu_available", lambda check_device=True: True)
    assert [rollout_server._get_worker_extension_cls() for rollout_server in servers] == [ascend, plain]


def prepared(engine_settings: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    rollout_server = diffusion_server(**settings)
    rollout_server.config.engine_kwargs = {
        "vllm_omni": {**rollout_server.config.engine_kwargs["vllm_omni"], **(engine_settings or {})}
    }
    arguments: dict[str, Any] = rollout_server._mode.engine_args(
        command_line(MODEL, "--max-num-seqs", "8"), rollout_server.config, rollout_server.model_config
    )
    return arguments


def test_the_engine_gets_the_pipeline_of_the_model() -> None:
    engine_args = prepared(step_execution=True)
    pipeline_class = engine_args["custom_pipeline_args"]["pipeline_class"]
    assert pipeline_class.startswith("verl_omni.pipelines.sd3.") and engine_args["step_execution"] is True
    assert (prepared()["step_execution"], prepared()["max_num_seqs"]) == (False, 8)


def test_the_attention_backend_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.diffusion.data import parse_attention_config

    from verl_omni.platforms.server_profile import NPU_PROFILE
    from verl_omni.workers.rollout.vllm_rollout.server import diffusion_mode, rollout_server

    on_cpu = prepared()["diffusion_attention_config"]
    assert parse_attention_config(on_cpu).default.backend == "TORCH_SDPA"
    monkeypatch.setattr(rollout_server, "get_device_name", lambda: "cuda")
    for settings, expected in (({"rollout_attn_backend": "TORCH_SDPA"}, "TORCH_SDPA"), ({}, "FLASH_ATTN")):
        assert parse_attention_config(prepared(**settings)["diffusion_attention_config"]).default.backend == expected
    with monkeypatch.context() as on_npu:
        on_npu.setattr(diffusion_mode, "server_profile", lambda: NPU_PROFILE)
        assert prepared()["diffusion_attention_config"] is None, "FLASH_ATTN, the default, needs a further package"
        named = prepared(rollout_attn_backend="TORCH_SDPA")["diffusion_attention_config"]
        assert parse_attention_config(named).default.backend == "TORCH_SDPA"
    named = {"default": {"backend": "CUDNN_ATTN"}}
    roles = {"per_role": {"joint": "TORCH_SDPA"}}
    for engine_kwargs, expected in (
        ({"diffusion_attention_backend": "CUDNN_ATTN"}, named),
        ({"diffusion_attention_config": named}, named),
        ({"diffusion_attention_backend": "CUDNN_ATTN", "diffusion_attention_config": roles}, {**named, **roles}),
    ):
        engine_args = prepared(engine_kwargs)
        assert {key: value for key, value in engine_args.items() if "attention" in key} == {
            "diffusion_attention_config": expected
        }


@pytest.mark.parametrize("side", ["", "negative_"])
def test_ids_for_other_encoders_are_refused_unless_a_family_of_a_user_may_read_them(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = diffusion_server()._mode
    request = RolloutRequest(prompt_ids=[1], **{f"{side}extra_prompt_ids": {"t5": [2]}})
    message = "extra_prompt_ids are not read: StableDiffusion3Pipeline tokenizes .* send prompt_ids alone"
    with pytest.raises(ValueError, match=message):
        mode.engine_request(request, {}, None, None, [])
    mode.engine_request(RolloutRequest(prompt_ids=[1]), {}, None, None, [])
    monkeypatch.setattr(FAMILIES, "_own", FAMILIES._own - {"StableDiffusion3Pipeline"})
    assert mode.engine_request(request, {}, None, None, [])["prompt"][f"{side}extra_prompt_ids"] == {"t5": [2]}


@pytest.mark.parametrize("field", ["extra_prompt_ids", "negative_extra_prompt_ids", "negative_prompt_ids"])
def test_a_language_model_refuses_what_it_does_not_read(field: str) -> None:
    from verl_omni.workers.rollout.vllm_rollout.language_model.token_requests import token_prompt

    with pytest.raises(ValueError, match="prompt_ids are not read: a language model"):
        token_prompt(RolloutRequest(prompt_ids=[1], **{field: [2]}))


class Started(Exception):
    """The engine has been started."""


async def test_a_server_holds_the_port_of_its_engine_and_runs_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm_omni.entrypoints

    ports = []

    def start(**arguments: Any) -> None:
        assert EpsImagePlugin.gs_binary is False, "Pillow would run an image of a request"
        ports.append(int(os.environ["MASTER_PORT"]))
        with socket.socket() as listener, pytest.raises(OSError, match="in use"):
            listener.bind(("127.0.0.1", ports[0]))
        raise Started

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(vllm_omni.entrypoints, "AsyncOmni", start)
    with pytest.raises(Started):
        await diffusion_server().run_server(command_line(MODEL))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))


def test_the_call_that_wakes_a_server_does_not_wait_behind_the_requests_of_a_step() -> None:
    """They wait in a server that sleeps."""
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniReplica

    replica = vLLMOmniReplica(1, rollout(), OmegaConf.create({"path": str(MODEL)}), gpus_per_node=1)
    assert replica.max_concurrency > 100 * replica.config.max_num_seqs
