"""Images in PostScript, which are programs: Pillow reads their pixels by running them in Ghostscript, if there is one.

Whoever writes a data set or sends a request chooses the content of an image, whatever the name of its file ends with.
"""

from __future__ import annotations

from PIL import EpsImagePlugin, Image

FORMAT = "EPS"


def forbid_programs() -> None:
    """Let Pillow start no Ghostscript in this process; reading such an image is an error."""
    EpsImagePlugin.gs_binary = False


def is_program(image: Image.Image) -> bool:
    """Whether the image is a program."""
    return image.format == FORMAT
