"""`JudgeWorkerExtension`: ends the engine of a judge when its server has died."""

from typing import Any, Self

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_omni.workers.rollout.vllm_rollout.judge.server_watch import end_engine_with_server


class JudgeWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """Mixed into vLLM's worker.

    A worker ends with the process that started it (verl sets the signal of a parent's death). With an executor of
    several processes that is the engine's, which would wait for requests of a killed server, and hold the memory of the
    accelerators. So the worker ends it.
    """

    def __new__(cls, **kwargs: Any) -> Self:
        extension: JudgeWorkerExtension = super().__new__(cls, **kwargs)
        end_engine_with_server()
        return extension
