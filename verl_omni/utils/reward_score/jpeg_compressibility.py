"""The scorer `jpeg` at its import path in the reference."""

from torch import Tensor

from verl_omni.reward_loop.rewards import jpeg
from verl_omni.utils.pixels import as_pixels


def compute_score(solution_image: Tensor) -> float:
    """Negative size of an image as a JPEG of quality 95, in kilobytes (1000 bytes).

    Args:
        solution_image: uint8, or floats from 0 to 1, [3, H, W]; of [N, 3, H, W] the first counts.
    """
    image = as_pixels(solution_image)
    return jpeg.compute_score("", image if image.ndim == 3 else image[0], None, None)
