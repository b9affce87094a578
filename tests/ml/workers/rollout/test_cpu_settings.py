"""Settings of a rollout on a CPU: what the engine needs there, and nothing else changes."""

from dataclasses import asdict
from typing import Any

from verl_omni.workers.config import DiffusionRolloutConfig
from verl_omni.workers.rollout import cpu_settings


def test_the_defaults_become_what_one_process_on_a_cpu_can_run() -> None:
    defaults = DiffusionRolloutConfig()
    assert cpu_settings.changes(defaults) == {
        "tensor_model_parallel_size": 1,
        "rollout_attn_backend": "TORCH_SDPA",
        "enable_sleep_mode": False,
        "engine_kwargs": {"vllm_omni": {"distributed_executor_backend": "uni"}},
    }
    fitted = cpu_settings.fit(defaults)
    assert cpu_settings.changes(fitted) == {} and cpu_settings.fit(fitted) is fitted
    before = asdict(defaults)
    after = asdict(fitted)
    assert {name for name in before if before[name] != after[name]} == set(cpu_settings.changes(defaults))


def test_an_executor_that_is_given_and_other_engine_settings_stay() -> None:
    engine: dict[str, Any] = {"vllm_omni": {"distributed_executor_backend": "mp", "max_num_seqs": 2}, "vllm": {"a": 1}}
    assert cpu_settings.fit(DiffusionRolloutConfig(engine_kwargs=engine)).engine_kwargs == engine
    del engine["vllm_omni"]["distributed_executor_backend"]
    fitted = cpu_settings.fit(DiffusionRolloutConfig(engine_kwargs=engine)).engine_kwargs
    assert fitted == {"vllm_omni": {"distributed_executor_backend": "uni", "max_num_seqs": 2}, "vllm": {"a": 1}}
