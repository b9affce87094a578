"""`ModelMode`: everything a rollout server does differently for diffusion models and for language models."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from verl_omni.workers.config import DiffusionRolloutConfig
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

WORKER_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.utils.vLLMOmniColocateWorkerExtension"
Params = Mapping[str, Any]


class ModelMode:
    """The kind of model behind a server: `engine_kwargs.vllm_omni.output_mode`.

    Attributes:
        npu_worker_extension: qualified name of the engine worker's extension on an Ascend NPU.
    """

    npu_worker_extension = WORKER_EXTENSION

    # --- configuration ---

    def load_model_config(self, config: Any) -> Any:
        """Parse the model's settings."""
        raise NotImplementedError

    def complete_rollout_config(self, config: DiffusionRolloutConfig) -> None:
        """Fill in, in place, what the rollout's settings leave open; nothing unless overridden."""

    def generation_defaults(self, verl_defaults: dict[str, Any]) -> dict[str, Any]:
        """Default sampling parameters, given those that verl sets; none unless overridden."""
        return {}

    def drop_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        """Remove, in place, the settings of `engine_kwargs.vllm_omni` that do not go through the command line."""
        raise NotImplementedError

    def engine_args(
        self, args: argparse.Namespace, config: DiffusionRolloutConfig, model_config: Any
    ) -> dict[str, Any]:
        """Arguments of `AsyncOmni`.

        Args:
            args: verl's command line, parsed.

        Raises:
            ValueError: the model's family does not support one of them.
        """
        raise NotImplementedError

    # --- requests ---

    def engine_request(
        self, request: RolloutRequest, params: Params, lora: Any, config: Any, stage_defaults: Sequence[Any]
    ) -> dict[str, Any]:
        """Arguments of `AsyncOmni.generate`; `stage_defaults` are its default parameters of each stage."""
        raise NotImplementedError

    def call_params(self, call: str, size: int) -> list[dict[str, Any]]:
        """Additional sampling parameters for each request of a call of the server, in the requests' order."""
        return [{}] * size

    def to_output(self, result: Any, params: Params, global_steps: int | None) -> DiffusionOutput | TokenOutput:
        """Convert the engine's last output of a request."""
        raise NotImplementedError

    def aborted_output(self, params: Params, global_steps: int | None) -> DiffusionOutput | TokenOutput:
        """Output of a request that is aborted before it reaches the engine."""
        raise NotImplementedError

    # --- weights and cache ---

    def hold_weights(self) -> AbstractContextManager[None]:
        """Context of one request, in which the server changes no weights; unless overridden, its worker refuses to."""
        return nullcontext()

    def check_idle(self) -> None:
        """Return if weights can be changed.

        Raises:
            WeightSyncError: a request would be answered by old weights and new ones.
        """

    async def clear_cache(self, engine: Any) -> None:
        """Drop what the engine computed from old weights, if it keeps anything; this may pause the engine."""

    async def resume_engine(self, engine: Any) -> None:
        """Resume an engine that a sleep, an abort or `clear_cache` paused."""
