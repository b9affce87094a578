"""A generated video as a file that browsers play: an animated WebP."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from verl_omni.utils.pixels import as_images

QUALITY = 90  # of WebP's lossy coding, at most 100
EFFORT = 2  # of 0 to 6: the time to write grows faster than the file shrinks


def write_video(path: Path, frames: Tensor, fps: float) -> None:
    """Write frames uint8 [T, 3, H, W] to `path`, which ends in `.webp`; played in a loop, without sound.

    Args:
        fps: frames a second; a frame is shown for a whole number of milliseconds.
    """
    first, *others = as_images(frames)
    first.save(
        path, "WEBP", save_all=True, append_images=others, duration=round(1000 / fps), loop=0, quality=QUALITY,
        method=EFFORT,
    )  # fmt: skip


def write_videos(videos: Mapping[Path, Tensor], fps: float) -> None:
    """Write several, side by side: one of 121 frames of 704 x 1280 takes seconds."""
    with ThreadPoolExecutor() as threads:
        for written in [threads.submit(write_video, path, frames, fps) for path, frames in videos.items()]:
            written.result()


def is_video(sample: Tensor) -> bool:
    """Whether a sample is a video [T, C, H, W], and not an image [C, H, W]."""
    return sample.ndim == 4
