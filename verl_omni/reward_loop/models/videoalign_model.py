"""VideoReward of VideoAlign (arXiv:2501.13918): Qwen2-VL with a LoRA adapter, and a head that rates a video.

The model is shown some frames of a video, and a text that names three criteria, each followed by a special token. The
hidden states at the three tokens go through a linear layer without bias, and the results are standardized. Facts of the
published model and its checkpoint come from github.com/KwaiVGI/VideoAlign at 219ab9d (MIT). The wording of the text
belongs to the weights, and is read from a file of that repository.
"""

from collections.abc import Mapping
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
    rename,
)
from verl_omni.reward_loop.models.weight_files import failures, read_weights
from verl_omni.reward_loop.rewards.videoalign.checkpoint import (
    CONFIG,
    LEAST_PIXELS,
    TOKENS,
    VideoAlignConfig,
    find_checkpoint,
    read_config,
    read_template,
)
from verl_omni.reward_loop.setting_types import MODEL

HEAD = "rm_head.weight"
# Frames that the model sees of a video: an even number between these.
FEWEST_FRAMES = 4
MOST_FRAMES = 768


@dataclass(frozen=True, slots=True)
class VideoAlignModel(LoadableModel):
    """The model with its processor, loaded from (model, processor, template, device).

    It computes in the dtype of its weights, and the head in fp32.

    Attributes:
        model: Qwen2VLModel of transformers, with the adapter.
        processor: processor of the base model, with the added TOKENS.
        heads: [fp32 [outputs, width]]; one output for each token, or one for all of them.
        template: the text about a video, with {text_prompt} in place of its prompt.
        device: device of the model and the head.
    """

    model: Any
    processor: Any
    heads: list[Tensor]
    template: str
    config: VideoAlignConfig
    device: torch.device

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        model, base, template, device = source
        file = find_checkpoint(model)
        config = read_config(file.parents[1] / CONFIG)
        folder, base_config, processor = read_base(base, TOKENS)
        weights = {name.removeprefix("base_model.model."): tensor for name, tensor in read_weights(file).items()}
        head = _take_head(weights, file, base_config)
        adapter = {rename(name): weights.pop(name) for name in [*weights] if ".lora_" in name}
        plain = {name.replace(".base_layer.", "."): tensor for name, tensor in weights.items()}
        loaded = make_model(plain, file, base_config, folder, processor, "VideoReward", ", ".join(TOKENS))
        if config.adapter.lora_enable:
            layers = {name.split(".lora_")[0] for name in adapter}
            add_adapter(loaded, layers, config.adapter.lora_r, config.adapter.lora_alpha, config.adapter.use_rslora)
        _load_adapter(loaded, adapter, file)
        return cls(
            model=to_device(loaded, device),
            processor=processor,
            heads=[head.to(device)],
            template=read_template(template),
            config=config,
            device=torch.device(device),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        model, base, template = source
        return failures(
            lambda: read_config(find_checkpoint(model).parents[1] / CONFIG),
            lambda: base_folder(base),
            lambda: read_template(template),
        )

    @override
    def move(self, device: torch.device) -> None:
        self.model.to(device)
        self.heads[:] = [head.to(device) for head in self.heads]

    @torch.inference_mode()
    def scores(self, video: Tensor, prompt: str, video_fps: float) -> Tensor:
        """Standardized visual quality, motion quality and text alignment: fp32 [3] on the CPU.

        Args:
            video: uint8 [T, 3, H, W]. video_fps: its frames a second.

        Raises:
            ValueError: it has one frame, or a side is more than 200 times as long as the other.
        """
        frames = video[sampled_frames(len(video), video_fps, self.config.data.fps)]
        text = {"type": "text", "text": self.template.format(text_prompt=prompt)}
        turns = [{"role": "user", "content": [{"type": "video"}, text]}]
        inputs = self.processor(
            text=[self.processor.apply_chat_template(turns, tokenize=False)],
            videos=[resize(frames.to(self.device), self.config.data.max_frame_pixels)],
            return_tensors="pt",
            videos_kwargs={"do_resize": False, "do_sample_frames": False},
        ).to(self.device)
        seen = self.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"]).pooler_output
        states = hidden_states(self.model, inputs, seen, self.model.config.video_token_id)[0]
        outputs = torch.nn.functional.linear(states[self._places(inputs["input_ids"][0])].float(), self.heads[0])
        rated = outputs.diagonal() if len(self.heads[0]) > 1 else outputs[:, 0]
        standard = self.config.standard
        return (rated.cpu() - torch.tensor(standard.means)) / torch.tensor(standard.deviations)

    def _places(self, ids: Tensor) -> list[int]:
        """Places of the template's TOKENS, [3]; a prompt may have such tokens, too."""
        token_places = [
            (ids == self.processor.tokenizer.convert_tokens_to_ids(token)).nonzero()[:, 0] for token in TOKENS
        ]
        visual, motion, alignment = token_places  # the prompt is between the second and the third
        return [int(visual[0]), int(motion[0]), int(alignment[-1])]


def sampled_frames(frames: int, video_fps: float, fps: float) -> list[int]:
    """PURE: indices of the frames that the model sees: evenly spaced, an even number, the first and the last included.

    Args:
        frames: number of frames of the video. video_fps: its frames a second.
        fps: how many of a second the model sees, if that makes 4 or more.

    Raises:
        ValueError: there are fewer than two frames.
    """
    if frames < 2:
        raise ValueError(f"videoalign rates motion: it takes videos of at least 2 frames, and got {frames}")
    most = min(MOST_FRAMES, frames) // 2 * 2
    wanted = min(max(frames / video_fps * fps, FEWEST_FRAMES), most)
    indices: list[int] = torch.linspace(0, frames - 1, round(wanted / 2) * 2).round().long().tolist()
    return indices


def resize(frames: Tensor, most_pixels: int) -> Tensor:
    """Frames of LEAST_PIXELS to `most_pixels` pixels, whose sides are multiples of CELL: fp32, from 0 to 255.

    Args:
        frames: uint8 [T, 3, H, W].

    Raises:
        ValueError: a side is more than 200 times as long as the other.
    """
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    size = smart_resize(*frames.shape[2:], factor=CELL, min_pixels=LEAST_PIXELS, max_pixels=most_pixels)
    resized = torch.nn.functional.interpolate(frames.float(), size, mode="bicubic", antialias=True)
    return resized.clamp(0, 255).round()


def add_adapter(model: Any, layers: set[str], rank: int, alpha: int, rank_stabilized: bool) -> None:
    """Add LoRA to linear layers of a model, in the dtype of their weights."""
    from peft import LoraConfig, inject_adapter_in_model

    if layers:
        config = LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rank_stabilized, target_modules=sorted(layers))
        inject_adapter_in_model(config, model)


def _load_adapter(model: Any, adapter: Mapping[str, Tensor], file: Path) -> None:
    """Load the weights of the adapter that `add_adapter` has added.

    Raises:
        ValueError: the model's adapter has weights with other names or shapes than `adapter`.
    """
    expected = {name: tensor.shape for name, tensor in model.state_dict().items() if ".lora_" in name}
    shapes = {name: tensor.shape for name, tensor in adapter.items()}
    if differing := sorted(name for name in expected | shapes if expected.get(name) != shapes.get(name)):
        name = differing[0]
        raise ValueError(
            f"{MODEL}: {file} has {len(differing)} weights of the adapter that do not fit {CONFIG}, such as {name} "
            f"with the shape {_shape(shapes, name)}, expected {_shape(expected, name)}; write both of one training"
        )
    model.load_state_dict(adapter, strict=False)


def _shape(shapes: Mapping[str, torch.Size], name: str) -> object:
    return list(shapes[name]) if name in shapes else None


def _take_head(weights: dict[str, Tensor], file: Path, config: Any) -> Tensor:
    """Remove the head from the weights of the file: fp32 [1 or 3, width]."""
    if HEAD not in weights:
        raise ValueError(f"{MODEL}: {file} lacks {HEAD} of the reward head; write the weights of VideoReward")
    head = weights.pop(HEAD).float()
    check_width(head, file, config)
    if len(head) not in (1, len(TOKENS)):
        raise ValueError(f"{MODEL}: the head of {file} returns {len(head)} numbers, expected 1 or {len(TOKENS)}")
    return head
