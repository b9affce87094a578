"""HPS v2, a CLIP model that was trained on people's choices between images of a prompt (arXiv:2306.09341).

The released file has the names of open_clip; a test compares the scores with the package hpsv2 1.2.0. The model itself
is transformers' CLIP, with the configuration and tokenizer of the model that it was trained from.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.models.clip_model import PROCESSOR_CONFIG, ClipModel, to_device, unit
from verl_omni.reward_loop.models.weight_files import failures, folder_with, load_weights, read_weights, weights_file
from verl_omni.reward_loop.setting_types import PROCESSOR
from verl_omni.utils.model_folder import model_folder

FILE = "HPS_v2.1_compressed.pt"
# Names of open_clip -> names of transformers, in this order.
_NAMES = (
    (r"^visual\.(class_embedding|positional_embedding)", r"vision_model.embeddings.\1"),
    (r"^visual\.conv1", "vision_model.embeddings.patch_embedding"),
    (r"^visual\.ln_pre", "vision_model.pre_layrnorm"),
    (r"^visual\.ln_post", "vision_model.post_layernorm"),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^text_projection$", "text_projection.weight"),
    (r"^token_embedding", "text_model.embeddings.token_embedding"),
    (r"^positional_embedding", "text_model.embeddings.positional_embedding"),
    (r"^ln_final", "text_model.final_layer_norm"),
    (r"^visual\.transformer\.resblocks", "vision_model.encoder.layers"),
    (r"^transformer\.resblocks", "text_model.encoder.layers"),
    (r"positional_embedding$", "position_embedding.weight"),
    (r"\.ln_(\d)\.", r".layer_norm\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"\.attn\.", ".self_attn."),
)
_TOGETHER = re.compile(r"(.*\.self_attn\.)in_proj_(weight|bias)")  # query, key and value in one tensor


class Hpsv2Model(ClipModel):
    """A CLIP model with the weights of HPS v2, loaded from (model, processor, device)."""

    __slots__ = ()

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        from transformers import AutoConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

        model, processor, device = source
        file = weights_file(model, FILE)
        folder = model_folder(processor, PROCESSOR)
        config = AutoConfig.from_pretrained(folder)
        if config.model_type != "clip":
            raise ValueError(f"{PROCESSOR}: {folder} has a model of type {config.model_type!r}, not 'clip'")
        clip = CLIPModel(config)
        load_weights(clip, _of_open_clip(file), file, f"HPS v2 for the model of {folder}")
        return cls(
            model=to_device(clip.float(), device),
            tokenizer=CLIPTokenizer.from_pretrained(folder),
            device=torch.device(device),
            image_processor=CLIPImageProcessor.from_pretrained(folder),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        model, processor = source
        return failures(
            lambda: weights_file(model, FILE),
            lambda: folder_with(processor, PROCESSOR, "a CLIP model", PROCESSOR_CONFIG),
        )

    @override
    @torch.inference_mode()
    def embed_images(self, images: Sequence[Tensor]) -> Tensor:
        """As of `ClipModel`; but an image is scaled to fit into the model's square, and not cropped."""
        side = self.model.config.vision_config.image_size
        mean = torch.tensor(self.image_processor.image_mean)[:, None, None]
        std = torch.tensor(self.image_processor.image_std)[:, None, None]
        pixels = torch.stack([(_fitted(image, side) - mean) / std for image in images]).to(self.device)
        return unit(self.model.get_image_features(pixel_values=pixels).pooler_output)


def _fitted(image: Tensor, side: int) -> Tensor:
    """The image, uint8 [3, H, W], as [3, side, side] from 0 to 1: its longer side is `side`, the rest is black."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import pad, resize

    pixels = image.cpu().float() / 255
    height, width = (round(length * side / max(image.shape[1:])) for length in image.shape[1:])
    if (height, width) != tuple(image.shape[1:]):
        pixels = resize(pixels, [max(height, 1), max(width, 1)], InterpolationMode.BICUBIC, antialias=True)
    right, down = side - pixels.shape[2], side - pixels.shape[1]
    fitted: Tensor = pad(pixels, [right // 2, down // 2, right - right // 2, down - down // 2])
    return fitted


def _of_open_clip(file: Path) -> dict[str, Tensor]:
    """The weights of a file, with transformers' names."""
    weights: Any = read_weights(file)
    named: dict[str, Tensor] = {}
    for name, tensor in weights.get("state_dict", weights).items():
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if match := _TOGETHER.fullmatch(name):
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                named[f"{match[1]}{part}_proj.{match[2]}"] = piece
        else:
            named[name] = tensor.T if name in ("visual_projection.weight", "text_projection.weight") else tensor
    return named
