"""Documented public names exist at their import paths, with their arguments."""

import importlib
import inspect
import operator
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from verl_omni.reference_names import MODULES
from verl_omni.reference_names import NAMES as ABSENT_NAMES

AGENT = "verl_omni.agent_loop"
WORKER = f"{AGENT}.diffusion_agent_loop"
LOSSES = "verl_omni.trainer.diffusion.diffusion_algos"
SCORES = "verl_omni.utils.reward_score"
MANAGER = "verl_omni.reward_loop.reward_manager"
SERVER = "verl_omni.workers.rollout.vllm_rollout"
HTTP = f"{SERVER}.vllm_omni_async_server"
# The last three as verl passes them to a scorer.
JUDGE = "data_source solution_image ground_truth extra_info reward_router_address reward_model_tokenizer model_name"
# Path, name, and arguments in order.
ARGUMENTS = (
    (AGENT, "DiffusionAgentLoopWorker.__init__", "config llm_client teacher_client reward_loop_worker_handles"),
    (AGENT, "DiffusionAgentLoopWorker.generate_sequences", "batch"),
    (AGENT, "DiffusionSingleTurnAgentLoop.run", "sampling_params kwargs"),
    (WORKER, "DiffusionAgentLoopWorker._run_agent_loop", "sampling_params agent_name"),
    (WORKER, "DiffusionAgentLoopWorker._agent_loop_postprocess", "output kwargs"),
    (WORKER, "DiffusionAgentLoopWorker._compute_score", "output prompts responses kwargs"),
    (WORKER, "DiffusionAgentLoopWorker._postprocess", "inputs input_non_tensor_batch"),
    (f"{AGENT}.single_turn_agent_loop", "DiffusionSingleTurnAgentLoop.__init__", "extra_tokenizer_map"),
    (f"{AGENT}.utils", "maybe_per_rollout_seeds", "meta_info batch_size global_indices"),
    (LOSSES, "register_diffusion_loss", "name"),
    (LOSSES, "register_diffusion_adv_est", "name"),
    (LOSSES, "DiffusionLossFn.__call__", "config model_output data"),
    (LOSSES, "DiffusionLossResult.__init__", "loss metrics add_loss_metric"),
    (SCORES, "default_compute_score_image", "data_source solution_image ground_truth extra_info kwargs"),
    (f"{SCORES}.jpeg_compressibility", "compute_score", "solution_image"),
    (f"{SCORES}.genrm_ocr", "compute_score_ocr", JUDGE),
    (f"{SCORES}.unified_reward", "compute_score_unified_reward", JUDGE),
    (f"{SCORES}.pickscore_reward", "compute_score_pickscore", "data_source solution_image ground_truth extra_info"),
    (f"{SCORES}.choice_reward", "compute_score", "solution_str ground_truth"),
    (f"{SCORES}.http_scorer_client", "compute_score", "data_source solution_image ground_truth server_url"),
    (MANAGER, "VisualRewardManager.__init__", "config tokenizer compute_score"),
    (MANAGER, "VisualRewardManager.run_single", "data"),
    (MANAGER, "VisualRewardManager.assemble_rm_scores", "data scores"),
    (MANAGER, "MultiVisualRewardManager.run_single", "data"),
    (
        HTTP,
        "vLLMOmniHttpServer.generate",
        "prompt_ids sampling_params request_id image_data video_data negative_prompt_ids prompt_mask priority",
    ),
    (HTTP, "vLLMOmniHttpServer.wake_up", "tags"),
    (HTTP, "vLLMOmniHttpServer.run_server", "args"),
    (HTTP, "vLLMOmniHttpServer.abort_all_requests", "reset_prefix_cache"),
    (HTTP, "vLLMOmniHttpServer.abort_request", "request_id"),
    (
        HTTP,
        "vLLMOmniHttpServer.__init__",
        "config model_config rollout_mode workers replica_rank node_rank gpus_per_node nnodes cuda_visible_devices",
    ),
    (HTTP, "vLLMOmniHttpServer.wait_for_requests_to_drain", ""),
    (HTTP, "vLLMOmniHttpServer.resume_generation", ""),
    (HTTP, "vLLMOmniReplica.__init__", "replica_rank config model_config gpus_per_node is_reward_model"),
    (HTTP, "DiffusionWholeSampleRetryLLMServerClient.__init__", "max_retries retry_wait_s"),
    (
        f"{SERVER}.utils",
        "vLLMOmniColocateWorkerExtension.update_weights_from_ipc",
        "peft_config base_sync_done use_shm zmq_update_id",
    ),
    (f"{SERVER}.utils", "vLLMOmniColocateWorkerExtension.set_pending_lora_peft_config", "peft_config"),
    (f"{SERVER}.npu_utils", "vLLMOmniNPUColocateWorkerExtension.sleep", "level"),
    (f"{SERVER}.npu_utils", "vLLMOmniNPUColocateWorkerExtension.wake_up", "tags"),
    (f"{SERVER}.npu_utils", "vLLMOmniNPUColocateWorkerExtension._maybe_get_memory_pool_context", "tag"),
    ("verl_omni.utils.vllm_omni.utils", "VLLMOmniHijack.hijack", ""),
)


def listed_in(section: str) -> list[tuple[str, str]]:
    """Modules and names of a table of docs/from-verl-omni/switching.md."""
    page = (Path(__file__).parents[2] / "docs" / "from-verl-omni" / "switching.md").read_text(encoding="utf-8")
    table = page.partition(f"### {section}\n")[2].partition("\n##")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `verl_omni")]
    return [(module.strip(" `"), name) for module, names in rows for name in re.findall(r"`(\w+)`", names)]


NAMES = listed_in("Public names")


@pytest.mark.slow  # some of the modules import the engine, which takes half a minute
@pytest.mark.timeout(300)
def test_documented_names_exist() -> None:
    assert len(NAMES) > 40
    for module, name in NAMES:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("module", "name", "arguments"), ARGUMENTS)
def test_documented_names_take_the_references_arguments(module: str, name: str, arguments: str) -> None:
    """Our own further arguments come after the documented ones, or by name alone, and have defaults."""
    assert (module, name.partition(".")[0]) in NAMES
    documented: Any = operator.attrgetter(name)(importlib.import_module(module))
    known = {key: parameter for key, parameter in inspect.signature(documented).parameters.items() if key != "self"}
    assert [key for key in known if key in arguments.split()] == arguments.split()
    for key, parameter in known.items():
        variable = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        assert key in arguments.split() or variable or parameter.default is not parameter.empty, key


ABSENT = [(module, name) for module, (names, _) in (MODULES | ABSENT_NAMES).items() for name in names]


@pytest.mark.parametrize(("module", "name"), ABSENT)
def test_a_name_that_does_not_exist_here_says_what_to_use(module: str, name: str) -> None:
    _, advice = (MODULES | ABSENT_NAMES)[module]
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {name}", {})
    message = str(caught.value)
    assert "of the reference" in message and name in message and message.endswith(f"does not exist here: {advice}")
    used = re.findall(r"verl_omni(?:\.\w+)+", advice)
    for name_used in used:
        pkgutil.resolve_name(name_used)


def test_other_names_that_are_missing_fail_as_always() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'verl_omni\.pipelines\.other'"):
        importlib.import_module("verl_omni.pipelines.other")
    for module in ABSENT_NAMES:
        with pytest.raises(AttributeError, match="has no attribute 'other'"):
            operator.attrgetter("other")(importlib.import_module(module))
        assert not hasattr(importlib.import_module(module), "__path__")


def test_the_page_lists_the_names_that_do_not_exist() -> None:
    assert sorted(listed_in("Names that do not exist here")) == sorted(ABSENT)


@pytest.mark.parametrize("module", ["verl_omni.pipelines.sd3_dpo", "verl_omni.pipelines.qwen_image_dpo"])
def test_modules_that_published_recipes_name_exist(module: str) -> None:
    importlib.import_module(module)


def test_the_package_exports_what_is_documented() -> None:
    assert importlib.import_module(AGENT).__all__ == [
        "DiffusionAgentLoopOutput",
        "DiffusionAgentLoopWorker",
        "DiffusionSingleTurnAgentLoop",
    ]


def test_the_loop_is_registered_under_its_name() -> None:
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    importlib.import_module(AGENT)
    target = _agent_loop_registry["diffusion_single_turn_agent"]["_target_"]
    assert target == f"{AGENT}.single_turn_agent_loop.DiffusionSingleTurnAgentLoop"


def test_the_documented_fields_of_a_sample() -> None:
    from verl_omni.agent_loop import DiffusionAgentLoopOutput
    from verl_omni.workers.rollout.replica import DiffusionOutput

    output = DiffusionAgentLoopOutput(prompt_ids=[1], response_diffusion_output=None, metrics={"num_preempted": 2})
    assert (output.response_logprobs, output.reward_score, output.num_turns, output.extra_fields) == (None, None, 0, {})
    assert (output.metrics.num_preempted, output.metrics.generate_sequences) == (2, 0.0)
    engine = DiffusionOutput(diffusion_output=None)
    assert (engine.log_probs, engine.stop_reason, engine.num_preempted, engine.extra_fields) == (None, None, None, {})
