"""Qwen-Image-Edit: sizes of a released model for `drl fit`, and of one to measure."""

from verl_omni.pipelines.description import ReleasedModel
from verl_omni.pipelines.qwen_image.sizes import COMPONENTS, MEASURED, TOKENIZER_LENGTH, WIDE

__all__ = ["MEASURED", "RELEASED", "WIDE"]

_TRANSFORMER, _CONFIG = COMPONENTS["transformer"]
_COMPONENTS_2511 = {**COMPONENTS, "transformer": (_TRANSFORMER, {**_CONFIG, "zero_cond_t": True})}
RELEASED = {
    "Qwen/Qwen-Image-Edit-2511": ReleasedModel("QwenImageEditPlusPipeline", _COMPONENTS_2511, TOKENIZER_LENGTH, 20.4)
}
