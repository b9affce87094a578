"""HPSv3, a model of human preference for an image given its prompt (arXiv:2508.03789): Qwen2-VL with a reward head.

A test compares its scores with the package hpsv3 1.0.0. The model is asked a question about the image; the
hidden state at the token `<|Reward|>` of the question goes through three linear layers, which give the mean and the
spread of the score. The wording of the question belongs to the weights, and is read from that package. It is not
imported, because its requirements do not fit the locked ones.
"""

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.models.clip_model import LoadableModel, to_device
from verl_omni.reward_loop.models.qwen2vl_model import (
    CELL,
    base_folder,
    check_width,
    hidden_states,
    make_model,
    read_base,
)
from verl_omni.reward_loop.models.weight_files import failures, weights_file
from verl_omni.reward_loop.setting_types import MODEL

FILE = "HPSv3.safetensors"
PACKAGE = "hpsv3"
TEXTS = "dataset/data_collator_qwen.py"
INSTALL = "install it without its requirements: pip install --no-deps hpsv3"
REWARD_TOKEN = "<|Reward|>"  # added to the vocabulary of the base model
# an image is resized to about this many pixels, its sides to multiples of CELL
PIXELS = 256 * CELL**2
HEAD = ("rm_head.0", "rm_head.3", "rm_head.5")  # between them are ReLUs, and a dropout that is off
# Outputs of the head: index of the mean, and number of outputs.
MEAN = 0
OUTPUTS = 2


@dataclass(frozen=True, slots=True)
class Question:
    """The question to the model: `before`, with {text_prompt} in place of the prompt, then `after`."""

    before: str
    after: str

    def about(self, prompt: str) -> str:
        """The question about an image of a prompt."""
        return self.before.format(text_prompt=prompt) + self.after


@dataclass(frozen=True, slots=True)
class Hpsv3Model(LoadableModel):
    """The model with its processor, loaded from (model, processor, device).

    It computes in the dtype of its weights, and the head in fp32.

    Attributes:
        model: Qwen2VLModel of transformers.
        processor: processor of the base model, with the added token `<|Reward|>`.
        head: weight [out, in] and bias [out] of the linear layers, fp32.
        device: device of the model and the head.
    """

    model: Any
    processor: Any
    head: list[tuple[Tensor, Tensor]]
    question: Question
    device: torch.device

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        from safetensors.torch import load_file

        model, base, device = source
        file = weights_file(model, FILE)
        folder, config, processor = read_base(base, (REWARD_TOKEN,))
        weights = load_file(file)
        head = [(weight.to(device), bias.to(device)) for weight, bias in _take_head(weights, file, config)]
        return cls(
            model=to_device(make_model(weights, file, config, folder, processor, "HPSv3", REWARD_TOKEN), device),
            processor=processor,
            head=head,
            question=read_question(),
            device=torch.device(device),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        model, base = source
        return failures(lambda: weights_file(model, FILE), lambda: base_folder(base), read_question)

    @override
    def move(self, device: torch.device) -> None:
        self.model.to(device)
        self.head[:] = [(weight.to(device), bias.to(device)) for weight, bias in self.head]

    @torch.inference_mode()
    def scores(self, images: Sequence[Tensor], prompts: Sequence[str]) -> Tensor:
        """Mean of the score of each image, uint8 [3, H, W], given its prompt: fp32 [B] on the CPU.

        Raises:
            ValueError: a side of an image is more than 200 times as long as the other.
        """
        turns = [
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": self.question.about(prompt)}]}]
            for prompt in prompts
        ]
        inputs = self.processor(
            text=self.processor.apply_chat_template(turns, tokenize=False),
            images=[resize(image) for image in images],
            padding=True,
            return_tensors="pt",
            images_kwargs={"do_resize": False},
        ).to(self.device)
        outputs = self._hidden_states(inputs).float()
        for layer, (weight, bias) in enumerate(self.head):
            outputs = torch.nn.functional.linear(outputs.relu() if layer else outputs, weight, bias)
        return outputs[:, MEAN].cpu()

    def _hidden_states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Hidden states [B, width] at the last `<|Reward|>` of each sample."""
        ids = inputs["input_ids"]
        seen = self.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output
        states = hidden_states(self.model, inputs, seen, self.model.config.image_token_id)
        is_reward = ids == self.processor.tokenizer.convert_tokens_to_ids(REWARD_TOKEN)
        last = ids.shape[1] - 1 - is_reward.int().flip(1).argmax(dim=1)
        return states[torch.arange(len(ids), device=self.device), last]


def read_question() -> Question:
    """The question that the released weights were trained with, from the text of the package hpsv3.

    Raises:
        FileNotFoundError: the package is not installed, or has no such question.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{MODEL}: needs the question in the package hpsv3; {INSTALL}")
    file = Path(spec.submodule_search_locations[0]) / TEXTS
    texts: dict[str, str] = {}
    for line in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            texts |= {target.id: str(line.value.value) for target in line.targets if isinstance(target, ast.Name)}
    before = texts.get("INSTRUCTION", "")
    after = texts.get("prompt_with_special_token", "")
    if "{text_prompt}" not in before or REWARD_TOKEN not in after:
        raise FileNotFoundError(
            f"{file} has no question with {{text_prompt}} and {REWARD_TOKEN}; 1.0.0 of hpsv3 has it"
        )
    return Question(before, after)


def resize(image: Tensor) -> Any:
    """The image, uint8 [3, H, W], as a PIL image of about `PIXELS` pixels whose sides are multiples of `CELL`.

    Raises:
        ValueError: a side is more than 200 times as long as the other.
    """
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    height, width = smart_resize(*image.shape[1:], factor=CELL, min_pixels=PIXELS, max_pixels=PIXELS)
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def _take_head(weights: dict[str, Tensor], file: Path, config: Any) -> list[tuple[Tensor, Tensor]]:
    """Remove the head from the weights of the file: weight and bias of each layer, fp32."""
    names = [f"{layer}.{part}" for layer in HEAD for part in ("weight", "bias")]
    if missing := [name for name in names if name not in weights]:
        raise ValueError(f"{MODEL}: {file} lacks {', '.join(missing)} of the reward head; write the weights of HPSv3")
    head = [(weights.pop(f"{layer}.weight").float(), weights.pop(f"{layer}.bias").float()) for layer in HEAD]
    check_width(head[0][0], file, config)
    if head[-1][0].shape[0] != OUTPUTS:
        raise ValueError(
            f"{MODEL}: the head of {file} returns {head[-1][0].shape[0]} numbers, expected mean and spread"
        )
    return head
