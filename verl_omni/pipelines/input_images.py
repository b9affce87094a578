"""Input images of prompts: the module `images.py` of a family that edits images."""

import importlib
from typing import Any, Protocol, cast

from verl_omni.pipelines.registry import family


class InputImages(Protocol):
    """Interface of a family's module `images.py`.

    Attributes:
        COUNT: number of images of every prompt.
    """

    COUNT: int

    def problem(self, size: tuple[int, int], pipeline: Any) -> str | None:
        """Why a prompt cannot have an image of this size, and what to do about it; None if it can.

        Args:
            size: width and height in pixels.
            pipeline: settings of the diffusion pipeline (`rollout.pipeline`).
        """


def input_images(architecture: str | None) -> InputImages | None:
    """Import the module `images.py` of a model's family; None: its prompts have no images.

    Raises:
        ValueError: no family has this architecture.
    """
    module = family(architecture).images
    return None if module is None else cast(InputImages, importlib.import_module(module))
