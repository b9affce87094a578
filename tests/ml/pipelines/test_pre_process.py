"""What each family checks of a request before the engine queues it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from verl_omni.models.tiny import MAKERS
from verl_omni.pipelines.registry import family
from verl_omni.utils.registry import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the engine's modules take half a minute to import

PICTURE = {"multi_modal_data": {"image": Image.new("RGB", (64, 64))}}


@pytest.fixture(params=sorted(MAKERS.keys() - {"qwen3_vl"}))  # which is a language model
def pre_process(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The check of a family, and a prompt that it accepts."""
    MAKERS[request.param](tmp_path)
    description = family(json.loads((tmp_path / "model_index.json").read_text())["_class_name"])
    check = load(f"{description.engine_module}:{description.pre_process}")(SimpleNamespace(model=str(tmp_path)))

    def checked(**params: Any) -> Any:
        accepted = {"height": 64, "width": 64, "num_inference_steps": 4, "max_sequence_length": 16, "extra_args": {}}
        prompt = {"prompt": "a lawn", **(PICTURE if description.images else {})}
        return check(SimpleNamespace(prompt=prompt, sampling_params=SimpleNamespace(**{**accepted, **params})))

    return checked


def test_a_request_that_would_fail_its_batch_is_refused_as_the_clients_error(pre_process: Any) -> None:
    from vllm_omni.errors import OmniClientError

    assert pre_process().sampling_params.height == 64
    for side in ("height", "width"):
        with pytest.raises(OmniClientError, match=rf"{side} must be a multiple of \d+, not 65"):
            pre_process(**{side: 65})
    with pytest.raises(OmniClientError, match="could not convert string to float: 'high'"):
        pre_process(extra_args={"noise_level": "high"})
    with pytest.raises(OmniClientError, match="does not fit"):
        pre_process(extra_args={"noise_level": 0.7, "sde_window_size": 9})
