"""ImageReward, a model of human preference for an image given its prompt (arXiv:2304.05977): BLIP with a reward head.

BLIP's text encoder reads the prompt and attends to the image; its first hidden state goes through five linear layers,
and the result is standardized. A test compares the scores with the package image-reward 1.5.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.models.clip_model import LoadableModel, to_device
from verl_omni.reward_loop.models.weight_files import failures, folder_with, load_weights, read_weights, weights_file
from verl_omni.reward_loop.setting_types import MODEL, PROCESSOR
from verl_omni.utils.model_folder import model_folder

FILE = "ImageReward.pt"
TOKENS = 35  # a prompt is cut after them
HEAD_WIDTH = 64  # of an attention head, in both encoders
EPSILON = 1e-6  # of the image encoder's norms
# Mean and standard deviation of the head's outputs, which the package has with the released weights.
MEAN = 0.16717362830052426
DEVIATION = 1.0333394966054072
# Mean and standard deviation of pixels, by channel, as in CLIP.
PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
PIXEL_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
# Names of the released file -> names here, in this order.
_NAMES = (
    (r"^mlp\.layers\.", "head."),
    (r"^blip\.text_encoder\.", "text."),
    (r"^blip\.visual_encoder\.cls_token", "vision.embeddings.class_embedding"),
    (r"^blip\.visual_encoder\.pos_embed", "vision.embeddings.position_embedding"),
    (r"^blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"^blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
    (r"^blip\.visual_encoder\.blocks\.", "vision.encoder.layers."),
    (r"\.attn\.proj\.", ".self_attn.projection."),
    (r"\.attn\.qkv\.", ".self_attn.qkv."),
    (r"\.norm(\d)\.", r".layer_norm\1."),
)


@dataclass(frozen=True, slots=True)
class ImageRewardModel(LoadableModel):
    """The model in fp32 with its tokenizer, loaded from (model, tokenizer, device).

    Attributes:
        model: modules `vision`, `text` and `head`.
        side: of the square that the model sees, in pixels.
    """

    model: Any
    tokenizer: Any
    side: int
    device: torch.device

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        from transformers import BertTokenizer

        model, tokenizer, device = source
        file = weights_file(model, FILE)
        weights = {_rename(name): tensor for name, tensor in read_weights(file).items()}
        loaded = make_model(*sizes_of(weights, file))
        load_weights(loaded, weights, file, "ImageReward")
        return cls(
            model=to_device(loaded, device),
            tokenizer=BertTokenizer.from_pretrained(model_folder(tokenizer, PROCESSOR)),
            side=loaded["vision"].config.image_size,
            device=torch.device(device),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        model, tokenizer = source
        return failures(
            lambda: weights_file(model, FILE),
            lambda: folder_with(tokenizer, PROCESSOR, "BERT's tokenizer", "vocab.txt"),
        )

    @torch.inference_mode()
    def scores(self, images: Sequence[Tensor], prompts: Sequence[str]) -> Tensor:
        """The score of each image, uint8 [3, H, W], given its prompt: fp32 [B] on the CPU."""
        pixels = torch.stack([_cropped(image, self.side) for image in images]).to(self.device)
        words = self.tokenizer(list(prompts), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt").to(
            self.device
        )
        seen = self.model["vision"](pixel_values=pixels).last_hidden_state
        read = self.model["text"](
            input_ids=words.input_ids,
            attention_mask=words.attention_mask,
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.int64, device=self.device),
        ).last_hidden_state
        scores: Tensor = (self.model["head"](read[:, 0])[:, 0] - MEAN) / DEVIATION
        return scores.cpu()


def sizes_of(weights: Mapping[str, Tensor], file: Path) -> tuple[Any, Any]:
    """The configurations of both encoders, from the shapes of their weights.

    Raises:
        ValueError: weights lack what determines the sizes.
    """
    from transformers import BlipTextConfig, BlipVisionConfig

    try:
        width, _, patch, _ = weights["vision.embeddings.patch_embedding.weight"].shape
        cells = weights["vision.embeddings.position_embedding"].shape[1] - 1
        vocabulary, text_width = weights["text.embeddings.word_embeddings.weight"].shape
        vision = BlipVisionConfig(
            hidden_size=width,
            intermediate_size=weights["vision.encoder.layers.0.mlp.fc1.bias"].shape[0],
            num_hidden_layers=_layers(weights, "vision.encoder.layers."),
            num_attention_heads=width // HEAD_WIDTH,
            image_size=isqrt(cells) * patch,
            patch_size=patch,
            layer_norm_eps=EPSILON,
        )
        text = BlipTextConfig(
            vocab_size=vocabulary,
            hidden_size=text_width,
            encoder_hidden_size=width,
            intermediate_size=weights["text.encoder.layer.0.intermediate.dense.bias"].shape[0],
            num_hidden_layers=_layers(weights, "text.encoder.layer."),
            num_attention_heads=text_width // HEAD_WIDTH,
            max_position_embeddings=weights["text.embeddings.position_embeddings.weight"].shape[0],
        )
    except KeyError as error:
        raise ValueError(
            f"{MODEL}: {file} lacks the weight {error.args[0]}; write the weights of ImageReward"
        ) from error
    return vision, text


def released_sizes() -> tuple[Any, Any]:
    """The configurations of the released model: BLIP with a large image encoder."""
    from transformers import BlipTextConfig, BlipVisionConfig

    vision = BlipVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=224,
        layer_norm_eps=EPSILON,
    )
    return vision, BlipTextConfig(encoder_hidden_size=1024, num_attention_heads=12)


def make_model(vision: Any, text: Any) -> torch.nn.ModuleDict:
    """The model with encoders of these configurations, whose weights are still to be loaded."""
    from transformers.initialization import no_init_weights
    from transformers.models.blip.modeling_blip import BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    with no_init_weights():
        encoders = {"vision": BlipVisionModel(vision), "text": BlipTextModel(text, add_pooling_layer=False)}
    return torch.nn.ModuleDict({**encoders, "head": make_head(text.hidden_size)})


def make_head(width: int) -> torch.nn.Sequential:
    """Linear layers without activations. The dropouts, which are off, give the layers their numbers in the file."""
    from torch.nn import Dropout, Linear

    dropout = Dropout()
    return torch.nn.Sequential(
        Linear(width, 1024),
        dropout,
        Linear(1024, 128),
        dropout,
        Linear(128, 64),
        dropout,
        Linear(64, 16),
        Linear(16, 1),
    )


def _layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)})


def _rename(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _cropped(image: Tensor, side: int) -> Tensor:
    """The middle of the image, uint8 [3, H, W], scaled to [3, side, side], with CLIP's mean and deviation."""
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as transforms

    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    picture = transforms.center_crop(transforms.resize(picture, side, InterpolationMode.BICUBIC), side)
    cropped: Tensor = transforms.normalize(transforms.to_tensor(picture), PIXEL_MEAN, PIXEL_DEVIATION)
    return cropped
