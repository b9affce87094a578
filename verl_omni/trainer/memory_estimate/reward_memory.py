"""Memory of the reward models that share the trainer's accelerators, from their configurations on fake tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from omegaconf import DictConfig
from torch._subclasses.fake_tensor import FakeTensorMode

from verl_omni.reward_loop.models import hpsv3_model, image_reward_model, qwen2vl_model
from verl_omni.reward_loop.models.weight_files import weights_file
from verl_omni.reward_loop.part_settings import TRAINER
from verl_omni.reward_loop.rewards import aesthetic, clap, clip_score, geneval, hpsv2, hpsv3, pickscore, videoalign
from verl_omni.reward_loop.rewards.geneval import conditions
from verl_omni.reward_loop.setting_types import MODEL, PROCESSOR
from verl_omni.trainer.memory_estimate.peak_tracker import PeakTracker
from verl_omni.utils.model_folder import model_folder


def _qwen2_vl(hidden: int, *, intermediate: int, heads: int, key_value_heads: int, vocabulary: int) -> dict[str, Any]:
    """A configuration of Qwen2-VL: sizes of its language model, whose width the image encoder's output has."""
    return {
        "model_type": "qwen2_vl",
        "text_config": {
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": 28,
            "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads,
            "vocab_size": vocabulary,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": hidden, "num_heads": 16, "mlp_ratio": 4},
    }


# Configurations of the scorers' default models, from the `config.json` of each repository, as far as they determine
# shapes; other keys have the defaults of transformers. tests/ml/trainer/memory_estimate/test_reward_memory.py has the
# published sizes.
PUBLIC: dict[str, dict[str, Any]] = {
    clip_score.WEIGHTS: {"model_type": "clip"},  # whose defaults are this model's
    aesthetic.WEIGHTS: {
        "model_type": "clip",
        "projection_dim": 768,
        "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        "vision_config": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
        },
    },
    pickscore.WEIGHTS: {
        "model_type": "clip",
        "projection_dim": 1024,
        "text_config": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
        },
        "vision_config": {
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_attention_heads": 16,
            "num_hidden_layers": 32,
            "patch_size": 14,
        },
    },
    geneval.DETECTOR: {
        "model_type": "mask2former",
        "num_labels": 80,
        "backbone_config": {
            "model_type": "swin",
            "depths": [2, 2, 18, 2],
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
    },
    hpsv3.BASE: _qwen2_vl(3584, intermediate=18944, heads=28, key_value_heads=4, vocabulary=152064),
    videoalign.BASE: _qwen2_vl(1536, intermediate=8960, heads=12, key_value_heads=2, vocabulary=151936),
}
PUBLIC[hpsv2.INPUTS] = PUBLIC[pickscore.WEIGHTS]  # PickScore was trained from it too
CLIP_DEFAULTS = {"pickscore": pickscore.WEIGHTS, "clip_score": clip_score.WEIGHTS, "aesthetic": aesthetic.WEIGHTS}
DETECTOR_INPUT = (800, 800)  # pixels of a square image, as the detector's processor enlarges it
QUESTION_TOKENS = 512  # upper bound for HPSv3's question with a prompt
# VideoReward: the rank of the published adapter, which all linear layers of the language model have; frames of an
# 8-second video, pixels of a frame, and an upper bound for the text with a prompt.
ADAPTER_RANK = 64
VIDEO_FRAMES = 16
VIDEO_PIXELS = 200704
VIDEO_TEXT_TOKENS = 1536


@dataclass(frozen=True, slots=True)
class RewardMemory:
    """Bytes that the scorers of one reward worker use on an accelerator of the trainer.

    Attributes:
        weights: weights of all models.
        activations: largest peak of a call.
    """

    weights: int = 0
    activations: int = 0


def measure(reward: DictConfig) -> RewardMemory:
    """The memory of the scorers that share the trainer's accelerators.

    Raises:
        FileNotFoundError: the configuration of a model is neither on this machine nor built in.
    """
    named = {str(part.get("name") or key): part for key, part in reward.reward_functions.items()}
    named = named or {str(reward.scorer): reward.scorer_kwargs}
    memories = [
        _memory(name, part.get(MODEL), part.get(PROCESSOR) or part.get(geneval.COLOR_MODEL), int(reward.batch_size))
        for name, part in named.items()
        if part.get("device") == TRAINER
    ]
    return RewardMemory(
        sum(memory.weights for memory in memories), max((memory.activations for memory in memories), default=0)
    )


@cache  # a job is estimated with many other settings
def _memory(name: str, model: str | None, second: str | None, batch: int) -> RewardMemory:
    """The memory of a scorer.

    Args:
        second: its processor, or its second model.
    """
    if name == "hpsv3":
        dtype = _dtype(model or hpsv3.WEIGHTS)
        tokens = hpsv3_model.PIXELS // qwen2vl_model.CELL**2 + QUESTION_TOKENS
        return _of_qwen2vl(configuration(second or hpsv3.BASE), dtype, batch, tokens)
    if name == "videoalign":  # one video at a time, two frames of which are a cell
        tokens = VIDEO_FRAMES // 2 * VIDEO_PIXELS // qwen2vl_model.CELL**2 + VIDEO_TEXT_TOKENS
        return _of_qwen2vl(configuration(second or videoalign.BASE), torch.bfloat16, 1, tokens, ADAPTER_RANK)
    if name == "image_reward":
        return _of_image_reward(batch)
    if name == "geneval":
        detector = _of_detector(configuration(model or geneval.DETECTOR))
        colors = _of_clip(configuration(second or geneval.COLORS), conditions.MOST_OBJECTS)
        return RewardMemory(detector.weights + colors.weights, max(detector.activations, colors.activations))
    if name == "clap":
        return _of_model(configuration(model or clap.WEIGHTS), torch.float32, lambda model: None)
    if name == "hpsv2":
        return _of_clip(configuration(second or hpsv2.INPUTS), batch)
    return _of_clip(configuration(model or CLIP_DEFAULTS[name]), batch)


def _of_clip(config: Any, batch: int) -> RewardMemory:
    def run(clip: Any) -> None:
        side = config.vision_config.image_size
        clip.get_image_features(pixel_values=torch.empty(batch, 3, side, side))
        tokens = config.text_config.max_position_embeddings
        clip.get_text_features(input_ids=torch.zeros(batch, tokens, dtype=torch.int64))

    return _of_model(config, torch.float32, run)


def _of_qwen2vl(config: Any, dtype: torch.dtype, batch: int, tokens: int, rank: int = 0) -> RewardMemory:
    """The language model's pass is the largest: it has the cells of images or videos, each four patches, and the text.

    Args:
        rank: of an adapter of all its linear layers; 0: it has none.
    """
    from transformers import AutoModel

    def make() -> Any:
        model = AutoModel.from_config(config, dtype=dtype)
        language = model.language_model.modules()
        for layer in [module for module in language if rank and isinstance(module, torch.nn.Linear)]:
            down, up = (layer.in_features, rank), (rank, layer.out_features)  # peft's cannot be made of fake tensors
            layer.adapter = torch.nn.ModuleList(
                [torch.nn.Linear(*size, bias=False, dtype=dtype) for size in (down, up)]
            )
        return model

    def run(model: Any) -> None:
        embeddings = torch.empty(batch, tokens, config.text_config.hidden_size, dtype=dtype)
        positions = torch.arange(tokens).expand(3, batch, tokens)
        mask = torch.ones(batch, 1, tokens, tokens, dtype=torch.bool)
        model.language_model(
            inputs_embeds=embeddings, attention_mask={"full_attention": mask}, position_ids=positions, use_cache=False
        )

    return _of_made(make, run)


def _of_image_reward(batch: int) -> RewardMemory:
    """Memory of ImageReward in its released sizes, which no configuration in a file of weights gives."""

    def run(model: Any) -> None:
        seen = model["vision"](pixel_values=torch.empty(batch, 3, *[model["vision"].config.image_size] * 2))
        model["text"](
            input_ids=torch.zeros(batch, image_reward_model.TOKENS, dtype=torch.int64),
            encoder_hidden_states=seen.last_hidden_state,
        )

    return _of_made(lambda: image_reward_model.make_model(*image_reward_model.released_sizes()), run)


def _of_detector(config: Any) -> RewardMemory:
    """Memory of a detector for one image, which its processor enlarges to DETECTOR_INPUT."""
    return _of_model(config, torch.float32, lambda model: model(pixel_values=torch.empty(1, 3, *DETECTOR_INPUT)))


def _of_model(config: Any, dtype: torch.dtype, run: Any) -> RewardMemory:
    from transformers import AutoModel

    return _of_made(lambda: AutoModel.from_config(config, dtype=dtype), run)


def _of_made(make: Callable[[], Any], run: Any) -> RewardMemory:
    tracker = PeakTracker()
    with FakeTensorMode(), torch.no_grad():
        model = make().eval()
        with tracker:
            weights = tracker.add([*model.parameters(), *model.buffers()])
            run(model)
    return RewardMemory(weights, tracker.peak - weights)


def configuration(path: str) -> Any:
    """The configuration of transformers of a folder, a repository in the hub cache, or a model that is built in.

    Raises:
        FileNotFoundError: it is none of them.
    """
    from transformers import AutoConfig

    try:
        folder = model_folder(path, MODEL)
    except FileNotFoundError:
        folder = None
    if folder is not None and (folder / "config.json").is_file():
        return AutoConfig.from_pretrained(folder)
    if path in PUBLIC:
        values = dict(PUBLIC[path])
        return AutoConfig.for_model(values.pop("model_type"), **values)
    raise FileNotFoundError(
        f"the reward model {path} shares the trainer's accelerators, and its configuration is neither on this machine "
        f"nor built in; for its memory, download it: hf download {path} --include '*.json'"
    )


def _dtype(path: str) -> torch.dtype:
    """The dtype of HPSv3's weights; the released weights' dtype if they are not on this machine."""
    from safetensors import safe_open

    try:
        file = weights_file(path, hpsv3_model.FILE)
    except FileNotFoundError:
        return torch.bfloat16
    with safe_open(file, "pt") as weights:
        return weights.get_tensor(next(iter(weights.keys()))).dtype
