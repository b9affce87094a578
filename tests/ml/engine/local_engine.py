"""vLLM-Omni's engine in the process of a test, without a server."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def command_line(model: Path, batch: int, extension: str | None = None) -> argparse.Namespace:
    """What a server takes of verl's command line."""
    return argparse.Namespace(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        max_num_seqs=batch,
        worker_extension_cls=extension,
        trust_remote_code=False,
        tensor_parallel_size=1,
        data_parallel_size=1,
        enable_sleep_mode=False,
    )


class LocalEngine:
    """The engine with the settings that a server gives it; start it in a running event loop.

    Args:
        batch: the most requests in one batch.
        rollout: settings of `DiffusionRolloutConfig`.
    """

    def __init__(self, model: Path, batch: int = 1, **rollout: Any) -> None:
        from vllm_omni.entrypoints import AsyncOmni

        from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
        from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode

        self._mode = DiffusionMode()
        settings = DiffusionModelConfig(path=str(model))
        self._mode.load_model_config(settings)
        self._rollout = DiffusionRolloutConfig(**rollout)
        self.ids = token_ids(settings)
        self._engine = AsyncOmni(**self._mode.engine_args(command_line(model, batch), self._rollout, settings))
        self.shutdown = self._engine.shutdown

    async def sample(
        self, name: str, prompt: str, params: dict[str, Any], *, negative: str | None = None, image: Any = None
    ) -> Any:
        """A sample of the request `name`."""
        from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
        from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

        request = RolloutRequest(
            self.ids(prompt, image is not None),
            negative_prompt_ids=None if negative is None else self.ids(negative, image is not None),
            image_data=None if image is None else [image],
        )
        defaults = self._engine.default_sampling_params_list
        engine_request = self._mode.engine_request(request, params, None, self._rollout, defaults)
        output = await last_output(self._engine.generate(request_id=name, **engine_request))
        return self._mode.to_output(output, params, 0)


def token_ids(settings: Any) -> Callable[..., list[int]]:
    """Function (text, whether there is an image) that returns the token ids which a trainer sends.

    Args:
        settings: `DiffusionModelConfig`.
    """
    from verl_omni.pipelines.registry import training_adapter

    template = training_adapter(settings.architecture).CHAT_TEMPLATE

    def ids(text: str, has_image: bool = False) -> list[int]:
        if template is None:
            return list(settings.tokenizer(text).input_ids)
        content = [{"type": "image"}, {"type": "text", "text": text}] if has_image else text
        asked = [{"role": "user", "content": content}]
        ids: list[int] = settings.tokenizer.apply_chat_template(
            asked, chat_template=template, add_generation_prompt=True, return_dict=False
        )
        return ids

    return ids
