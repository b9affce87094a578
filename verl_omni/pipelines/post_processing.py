"""Post-processing of every model family: decoded samples in the form that the request asked for."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from verl_omni.utils.pixels import as_images, as_pixels


def get_post_process_func(od_config: Any) -> Callable[..., Any]:
    """Factory of the engine's post-processing function, which converts the output of the VAE as `output_type` asks.

    The function takes a tensor (no recorded fields), or the dict that `trajectory_recorder.attach` made.
    """

    def post_process(output: Any, sampling_params: Any = None) -> Any:
        if isinstance(output, Tensor):
            return convert(output, sampling_params)
        payload = {media: convert(pixels, sampling_params) for media, pixels in output["payload"].items()}
        return {**output, "payload": payload}

    return post_process


def convert(pixels: Tensor, sampling_params: Any) -> Any:
    """Convert the output of the VAE in [-1, 1], an image [1, 3, H, W] or a video [1, 3, T, H, W].

    `output_type` is `latent` (returned unchanged), `pt` (pixels; a video becomes [1, T, 3, H, W]), or unset, as HTTP
    clients leave it: PIL images, for a video pixels. `extra_args["pixel_dtype"]` is `uint8` (default) or `float32`.
    """
    output_type = getattr(sampling_params, "output_type", None)
    if output_type == "latent":
        return pixels
    video = pixels.ndim == 5
    scaled = (pixels.transpose(1, 2) if video else pixels).float() / 2 + 0.5
    if output_type == "pt" or video:
        extra = getattr(sampling_params, "extra_args", None) or {}
        return as_pixels(scaled, extra.get("pixel_dtype", "uint8"))
    return as_images(as_pixels(scaled))
