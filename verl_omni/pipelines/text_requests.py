"""Check of the requests of families that generate from text alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_omni.errors import OmniClientError

from verl_omni.pipelines.request_checks import check_request
from verl_omni.pipelines.sample_shapes import size_check
from verl_omni.utils.vllm_omni.client_errors import client_errors


def text_requests(architecture: str, title: str, steps: int) -> Callable[[Any], Callable[[Any], Any]]:
    """The `get_pre_process_func` of a family: the factory of the check of a request before it joins a batch.

    An invalid request would fail the whole batch.

    Args:
        title: the models' name, for messages. steps: denoising steps of a request that does not say how many.
    """

    def get_pre_process_func(od_config: Any) -> Callable[[Any], Any]:
        size = size_check(architecture, Path(od_config.model))

        def pre_process(request: Any) -> Any:
            params = request.sampling_params
            if not isinstance(request.prompt, str) and request.prompt.get("multi_modal_data"):
                raise OmniClientError(f"{title} accepts text prompts only: remove the images, videos or audio")
            params.num_inference_steps = params.num_inference_steps or steps
            with client_errors():
                check_request(params, size, steps=params.num_inference_steps)
            return request

        return pre_process

    return get_pre_process_func
