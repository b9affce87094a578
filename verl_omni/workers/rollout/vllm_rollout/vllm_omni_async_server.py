"""Re-export: programs written for verl-omni import the server, the replica and the retry client from this path."""

from verl_omni.workers.rollout.vllm_rollout.driver.replica_handle import vLLMOmniReplica
from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import DiffusionWholeSampleRetryLLMServerClient
from verl_omni.workers.rollout.vllm_rollout.server.rollout_server import vLLMOmniHttpServer

__all__ = ["DiffusionWholeSampleRetryLLMServerClient", "vLLMOmniHttpServer", "vLLMOmniReplica"]
