"""Names that this package adds to verl's registries: the rollout `vllm_omni`, and the agent loop of one sample.

`import verl_omni` registers them, as the reference's does, but imports neither verl nor torch: each name is added when
verl's registry is imported (docs/adr/0017). verl itself imports this package, through its entry points.
"""

from types import ModuleType

from verl_omni.utils.import_hooks import after_import

ROLLOUT = "vllm_omni"
SERVER_ADAPTER = "verl_omni.workers.rollout.vllm_rollout.training_worker.server_adapter.ServerAdapter"
AGENT_LOOP = "diffusion_single_turn_agent"
AGENT_LOOP_CLASS = "verl_omni.agent_loop.single_turn_agent_loop.DiffusionSingleTurnAgentLoop"


def register_names() -> None:
    """Add the names to verl's registries: now where they are imported, otherwise when they are. Safe to repeat."""
    after_import("verl.workers.rollout.replica", _add_replica)
    after_import("verl.workers.rollout.base", _add_weight_sender)
    after_import("verl.experimental.agent_loop.agent_loop", _add_agent_loop)


def _add_replica(registry: ModuleType) -> None:
    registry.RolloutReplicaRegistry.register(ROLLOUT, _load_replica)


def _load_replica() -> type:
    from verl_omni.workers.rollout.vllm_rollout.driver.replica_handle import vLLMOmniReplica

    return vLLMOmniReplica


def _add_weight_sender(registry: ModuleType) -> None:
    registry._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = SERVER_ADAPTER  # verl has no public call for it


def _add_agent_loop(registry: ModuleType) -> None:
    registry._agent_loop_registry.setdefault(AGENT_LOOP, {"_target_": AGENT_LOOP_CLASS})
