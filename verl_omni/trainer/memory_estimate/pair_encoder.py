"""Memory of the trainer's text encoders and VAE, which encode pairs of a data set (`sample_source=offline`)."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from verl_omni.trainer.memory_estimate.engine_memory import encode_texts, peak_of
from verl_omni.trainer.memory_estimate.model_shapes import VAE, ModelShapes, tensor_bytes
from verl_omni.workers.config.diffusion.dtypes import parse_dtype

# Channels of an image, images of a pair.
CHANNELS = 3
IMAGES = 2


def measure(config: DictConfig, model: ModelShapes, sample: Mapping[str, Tensor], *, pairs: int) -> tuple[int, int]:
    """Memory of a rank that encodes `pairs` pairs: all prompts at once, then one image after the other.

    Args:
        sample: tensors of one encoded image.

    Returns:
        Bytes of the encoders' weights, which are in CPU memory except while they run, and the peak in addition to them,
        including the images of the rank's pairs.
    """
    size = config.actor_rollout_ref.rollout.pipeline
    dtype = parse_dtype(
        "mixed_precision.param_dtype", config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype
    )
    sizes, texts = encode_texts(config, model, dtype, pairs, None)
    vae: Any = model.as_fake(model.on_meta(VAE, dtype))
    image = model.empty(1, CHANNELS, size.height, size.width, dtype=dtype)
    images = IMAGES * pairs * image.nbytes
    embeddings = pairs * sum(tensor.nbytes for name, tensor in sample.items() if name != "clean_latents")
    encoding = peak_of(vae, lambda: vae.encode(image, return_dict=False), None)
    weights = sum(sizes) + tensor_bytes([*vae.parameters(), *vae.buffers()])
    return weights, max(texts, embeddings + images + encoding)
