"""Settings in `rollout.engine_kwargs.vllm_omni` have their effect in the worker of the real engine.

That each one arrives: workers/rollout/server/test_engine_stage.py.
"""

from typing import Any

import pytest

from tests.ml.engine.replica_driver import Replica
from verl_omni.settings_schema.engine_settings import GROUP

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = ["a red circle", "two cat photo"]
# In both spellings, as on the command line of a recipe.
GIVEN = (
    "enable_prompt_embed_cache=true",
    "prompt_embed_cache_size=5",
    "vae_use_slicing=true",
    "vae-use-tiling=true",
)


@pytest.fixture(scope="module")
def stack(start_tiny: Any) -> Any:
    _, running = start_tiny(
        PROMPTS,
        "actor_rollout_ref.rollout.external_lib=tests.ml.engine.reporting_worker",
        *(f"+{GROUP}.{setting}" for setting in GIVEN),
    )
    running.weights.update_weights(global_steps=0)
    return running


def reported(stack: Any) -> dict[str, Any]:
    import ray

    call = stack.servers.server_handles[0].collective_rpc.remote("report_settings")
    (report,) = ray.get(call, timeout=120)
    return dict(report)


def test_settings_have_their_effect(stack: Any) -> None:
    import ray

    reports = reported(stack)
    assert reports["vae"] == (True, True), "vLLM-Omni does not apply them to a pipeline that it does not make itself"
    for request in ("first", "again"):
        answer = stack.servers.server_handles[0].generate.remote(request_id=request, **Replica.request(seed=3))
        assert ray.get(answer, timeout=120).diffusion_output.shape == (3, 64, 64)
    assert reported(stack)["prompt_embed_cache"]["hits"] > reports["prompt_embed_cache"]["hits"]
