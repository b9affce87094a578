"""The configuration that vLLM-Omni makes of a server's settings before it starts its workers."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from verl_omni.pipelines.registry import PROMPT_CACHE
from verl_omni.settings_schema.engine_settings import SETTINGS
from verl_omni.workers.config import DiffusionRolloutConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # vLLM-Omni takes half a minute to import

# A value of each setting that is not vLLM-Omni's default.
VALUES: dict[str, Any] = {
    "boundary_ratio": 0.875,
    "cache_backend": "tea_cache",
    "cache_config": {"rel_l1_thresh": 0.5},
    "diffusion_attention_backend": "CUDNN_ATTN",
    "diffusion_attention_config": {"default": {"backend": "CUDNN_ATTN"}},
    "diffusion_compile_dynamic": False,
    "diffusion_compile_granularity": "full",
    "diffusion_kv_cache_dtype": "fp8",
    "diffusion_kv_cache_skip_layers": "0-2",
    "diffusion_kv_cache_skip_steps": "1",
    "distributed_executor_backend": "mp",
    "enable_cache_dit_summary": True,
    "enable_cpu_offload": True,
    "enable_diffusion_pipeline_profiler": True,
    "enable_layerwise_offload": True,
    "enable_multithread_weight_load": False,
    "enable_prompt_embed_cache": True,
    "fa_deterministic": True,
    "flow_shift": 2.5,
    "force_cutlass_fp8": True,
    "init_timeout": 77,
    "max_num_seqs": 3,
    "num_weight_load_threads": 2,
    "prompt_embed_cache_size": 5,
    "quantization": "fp8",
    "quantization_config": {"method": "fp8"},
    "request_batch_max_wait_ms": 9.0,
    "vae_parallel_mode": "spatial_shard_width",
    "vae_patch_parallel_size": 2,
    "vae_use_slicing": True,
    "vae_use_tiling": True,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny model of a family, made once."""
    from verl_omni.models.tiny import MAKERS

    folder = tmp_path_factory.mktemp("models")

    def model(name: str) -> Path:
        if not (folder / name).exists():
            MAKERS[name](folder / name)
        return folder / name

    return model


def arguments(model: Path, **engine: Any) -> dict[str, Any]:
    """What a server hands `AsyncOmni` with settings of the engine."""
    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode

    mode = DiffusionMode()
    target = {"_target_": "verl_omni.workers.config.DiffusionModelConfig", "path": str(model)}
    model_config = mode.load_model_config(OmegaConf.create(target))
    args = argparse.Namespace(
        model=str(model),
        trust_remote_code=False,
        dtype="float32",
        tensor_parallel_size=1,
        data_parallel_size=1,
        enforce_eager=True,
        enable_sleep_mode=False,
        distributed_executor_backend=None,
        max_num_seqs=8,
        worker_extension_cls="some.Extension",
        gpu_memory_utilization=0.5,
        kv_cache_dtype="auto",
        seed=7,
    )
    return mode.engine_args(args, DiffusionRolloutConfig(engine_kwargs={"vllm_omni": engine}), model_config)


def stage(model: Path, **engine: Any) -> Any:
    """The stage's configuration, which the engine makes first."""
    from vllm_omni.engine import stage_init_utils
    from vllm_omni.engine.async_omni_engine import AsyncOmniEngine

    engine_args = arguments(model, **engine)
    of_the_start = ("model", "trust_remote_code", "init_timeout")  # AsyncOmni and its engine take them
    engine_args = {name: value for name, value in engine_args.items() if name not in of_the_start}
    unstarted: Any = object.__new__(AsyncOmniEngine)
    unstarted._omni_lb_policy = "random"
    _, (config,) = unstarted._resolve_stage_configs(str(model), engine_args, trust_remote_code=False)
    metadata = stage_init_utils.extract_stage_metadata_from_omni_stage_config(config)
    return stage_init_utils.build_diffusion_config(str(model), config, metadata)


def found_in(config: Any, name: str) -> Any:
    match name:
        case "cache_config":
            return {"rel_l1_thresh": config.cache_config.rel_l1_thresh}
        case "diffusion_attention_backend":
            return config.diffusion_attention_config.default.backend
        case "diffusion_attention_config":
            return {"default": {"backend": config.diffusion_attention_config.default.backend}}
        case "quantization":
            return config.quantization_config.get_name()
        case "quantization_config":
            return {"method": config.quantization_config.get_name()}
        case "vae_parallel_mode" | "vae_patch_parallel_size":
            return getattr(config.parallel_config, name)
        case _:
            return getattr(config, name)


@pytest.mark.parametrize("family", ["sd3", "wan"])  # without and with a pipeline in vLLM-Omni's registry
def test_every_setting_arrives(family: str, models: Any) -> None:
    assert VALUES.keys() == SETTINGS.keys()
    plain = stage(models(family))
    for name, value in VALUES.items():
        if name == "init_timeout":
            continue
        config = stage(models(family), **{name: value})
        if family == "wan" and name in PROMPT_CACHE:
            assert found_in(config, name) != value, f"{name} arrives now: remove it from `unread_engine_settings`"
            continue
        assert found_in(config, name) == value, name
        if not name.startswith(("diffusion_attention", "quantization")):
            assert found_in(plain, name) != value, f"{name}: the default shows nothing"


@pytest.mark.parametrize("family", ["sd3", "wan"])
def test_nothing_else_arrives(family: str, models: Any) -> None:
    """vLLM's command line has defaults of engines that generate tokens."""
    config = stage(models(family))
    assert (config.diffusion_kv_cache_dtype, config.gpu_memory_utilization, config.flow_shift) == (None, 0.9, None)
    assert config.dtype == torch.float32 and config.max_num_seqs == 8 and config.parallel_config.world_size == 1
    assert config.diffusion_attention_config.default.backend == DiffusionRolloutConfig().rollout_attn_backend


def test_the_time_to_start_is_that_of_the_engine(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.entrypoints import AsyncOmni

    started: dict[str, Any] = {}

    def start(_: AsyncOmni, **given: Any) -> None:
        started.update(given)
        raise InterruptedError

    monkeypatch.setattr(AsyncOmni, "_create_engine", start)
    with pytest.raises(InterruptedError):
        AsyncOmni(**arguments(models("sd3"), init_timeout=77))
    assert started["init_timeout"] == 77


def test_a_pipeline_without_batches_gets_one_request_at_a_time(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.pipelines.sd3.engine_pipeline import SD3RolloutPipeline

    assert arguments(models("sd3"), max_num_seqs=3)["max_num_seqs"] == 3
    monkeypatch.setattr(SD3RolloutPipeline, "supports_request_batch", False)
    assert arguments(models("sd3"), max_num_seqs=3)["max_num_seqs"] == 1


# --- the VAE, which vLLM-Omni leaves alone in pipelines that it does not make -----------------------------


def engine_config(**settings: Any) -> Any:
    ranks = settings.pop("ranks", 1)
    parallel = SimpleNamespace(vae_patch_parallel_size=ranks, vae_parallel_mode="spatial_shard_height")
    return SimpleNamespace(**{"vae_use_slicing": False, "vae_use_tiling": False, **settings}, parallel_config=parallel)


def test_a_vae_is_divided_among_the_accelerators_of_a_replica() -> None:
    from vllm_omni.diffusion.distributed.autoencoders.distributed_vae_executor import DistributedVaeMixin

    from verl_omni.workers.rollout.vllm_rollout.engine_worker.worker_extension import apply_vae_settings

    class Divided(DistributedVaeMixin):
        use_tiling = use_slicing = False

        def set_parallel_size(self, parallel_size: int, mode: str = "tile") -> None:
            self.divided = parallel_size, mode

    vae = Divided()
    apply_vae_settings(vae, engine_config())
    assert (vae.use_tiling, vae.use_slicing, hasattr(vae, "divided")) == (False, False, False)
    apply_vae_settings(vae, engine_config(ranks=2, vae_use_slicing=True))
    assert (vae.use_tiling, vae.use_slicing, vae.divided) == (True, True, (2, "spatial_shard_height"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 2}, "vae_patch_parallel_size: SimpleNamespace decodes on one accelerator; write 1"),
        ({"vae_use_tiling": True}, "vae_use_tiling: SimpleNamespace does not have it; write false"),
    ],
)
def test_a_vae_that_cannot_do_it_is_refused(settings: dict[str, Any], message: str) -> None:
    from verl_omni.workers.rollout.vllm_rollout.engine_worker.worker_extension import apply_vae_settings

    with pytest.raises(ValueError, match=message):
        apply_vae_settings(SimpleNamespace(), engine_config(**settings))
    apply_vae_settings(None, engine_config())
