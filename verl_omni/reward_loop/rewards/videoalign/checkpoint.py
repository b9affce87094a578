"""Files of the published VideoReward: where its weights are, its configuration, and the text that belongs to them."""

import ast
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verl_omni.reward_loop.setting_types import MODEL
from verl_omni.utils.model_folder import model_folder

TEMPLATE = "template_path"  # setting
CONFIG = "model_config.json"
CHECKPOINTS = "checkpoint-*"  # folders; the number is a training step
FILE = "model.pth"
CONSTANT = "DETAILED_PROMPT_WITH_SPECIAL_TOKEN"  # name of the text in the repository's prompt_template.py
PROMPT = "{text_prompt}"
# Added to the vocabulary of the base model, in this order: visual quality, motion quality, text alignment.
TOKENS = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")
LEAST_PIXELS = 128 * 28**2  # of a frame, which is enlarged to them


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Data(_Part):
    """What the model sees. Other ways of sampling and other texts exist in the repository, and not here."""

    fps: float = Field(gt=0)
    max_frame_pixels: int = Field(ge=LEAST_PIXELS)
    num_frames: None = None
    sample_type: Literal["uniform"] = "uniform"
    prompt_template_type: Literal["detailed_special"]


class _Model(_Part):
    use_special_tokens: Literal[True]


class _Adapter(_Part):
    lora_enable: bool
    lora_r: int = Field(default=16, ge=1)
    lora_alpha: int = 32
    use_rslora: bool = False


class _Standard(_Part):
    """Mean and standard deviation of each output on the authors' validation set."""

    VQ_mean: float = 0.0
    VQ_std: float = Field(default=1.0, gt=0)
    MQ_mean: float = 0.0
    MQ_std: float = Field(default=1.0, gt=0)
    TA_mean: float = 0.0
    TA_std: float = Field(default=1.0, gt=0)

    @property
    def means(self) -> tuple[float, float, float]:
        """Means in the order of TOKENS."""
        return self.VQ_mean, self.MQ_mean, self.TA_mean

    @property
    def deviations(self) -> tuple[float, float, float]:
        """Standard deviations in the order of TOKENS."""
        return self.VQ_std, self.MQ_std, self.TA_std


class VideoAlignConfig(_Part):
    """The part of a checkpoint's `model_config.json` that scores depend on."""

    data: _Data = Field(alias="data_config")
    model: _Model = Field(alias="model_config")
    adapter: _Adapter = Field(alias="peft_lora_config")
    standard: _Standard = Field(default=_Standard(), alias="inference_config")


def find_checkpoint(path: str) -> Path:
    """The weights of the newest checkpoint in the folder or hub repository of the published model.

    Raises:
        FileNotFoundError: it has none, or no configuration.
    """
    folder = model_folder(path, MODEL)
    steps = {int(file.parent.name.rpartition("-")[2]): file for file in folder.glob(f"{CHECKPOINTS[:-1]}[0-9]*/{FILE}")}
    if not steps or not (folder / CONFIG).is_file():
        missing = f"{CHECKPOINTS}/{FILE}" if not steps else CONFIG
        raise FileNotFoundError(
            f"{MODEL}: {folder / missing} does not exist; write the folder of VideoReward, which has {CONFIG} and "
            f"{CHECKPOINTS}/{FILE}"
        )
    return steps[max(steps)]


def read_config(file: Path) -> VideoAlignConfig:
    """The configuration of a checkpoint.

    Raises:
        ValueError: it has another form, or asks for what is not supported.
    """
    try:
        return VideoAlignConfig.model_validate_json(file.read_bytes())
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise ValueError(f"{MODEL}: {file} is not supported: {problems}") from error


def read_template(path: str) -> str:
    """The text about a video from the repository's `prompt_template.py`, which is not run.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it has no such text.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{TEMPLATE}: no file {file}; write prompt_template.py of https://github.com/KwaiVGI/VideoAlign"
        )
    texts = {
        target.id: str(line.value.value)
        for line in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    template = texts.get(CONSTANT, "")
    visual, motion, alignment = TOKENS
    order = [template.find(mark) for mark in (visual, motion, PROMPT, alignment)]
    if -1 in order or order != sorted(order):
        raise ValueError(
            f"{TEMPLATE}: {file} has no text {CONSTANT} with {visual}, {motion}, {PROMPT} and {alignment} in this "
            "order; write prompt_template.py of https://github.com/KwaiVGI/VideoAlign"
        )
    return template
