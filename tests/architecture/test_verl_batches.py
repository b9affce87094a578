"""verl's batches and their open fields stay in the modules that speak to verl; the others know `verl_omni.samples`."""

import ast
from typing import Any

NAMES = {"DataProto", "meta_info", "non_tensor_batch", "extra_fields"}
SPEAK_TO_VERL = {
    # verl's agent loops: their input, their output, and their methods that subclasses override
    "verl_omni.agent_loop.batching",
    "verl_omni.agent_loop.diffusion_agent_loop",
    "verl_omni.agent_loop.manager",
    "verl_omni.agent_loop.output",
    "verl_omni.agent_loop.sampling",
    "verl_omni.agent_loop.score_requests",
    "verl_omni.agent_loop.single_turn_agent_loop",
    # its rollout servers and their client
    "verl_omni.workers.rollout.replica",
    "verl_omni.workers.rollout.output_groups",
    "verl_omni.workers.rollout.vllm_rollout.driver.rollout_client",
    "verl_omni.workers.rollout.vllm_rollout.language_model.token_requests",
    "verl_omni.workers.rollout.vllm_rollout.server.outputs",
    # its reward workers and reward managers
    "verl_omni.reward_loop.reward_manager.multi",
    "verl_omni.reward_loop.reward_manager.visual",
    "verl_omni.trainer.rewards.reward_workers",
    # its ranks
    "verl_omni.workers.engine_workers",
    "verl_omni.trainer.data.preferences",
    "verl_omni.trainer.update.policy_update",
    "verl_omni.trainer.device_checks.engine_checks",
    # the trainer's batches, there and back
    "verl_omni.trainer.generation.late_scoring",
    "verl_omni.trainer.generation.verl_batches",
}


def names_in(tree: ast.Module) -> set[str]:
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.arg for node in ast.walk(tree) if isinstance(node, (ast.arg, ast.keyword)) if node.arg}


def test_only_modules_that_speak_to_verl_know_its_batches(modules: list[Any]) -> None:
    of_trainer = [module for module in modules if module.name.startswith("verl_omni.")]
    users = {module.name for module in of_trainer if NAMES & names_in(module.tree)}
    assert users == SPEAK_TO_VERL, "convert in one of these modules, and use the types of verl_omni.samples elsewhere"


def test_no_context_variable_carries_what_an_argument_can(modules: list[Any]) -> None:
    carriers = {module.name for module in modules if "ContextVar" in names_in(module.tree)}
    assert not {name for name in carriers if name.startswith(("verl_omni.agent_loop", "verl_omni.trainer"))}
