"""Images in PostScript, which are programs: Pillow reads their pixels by running them in Ghostscript, if there is one.

The author of a data set, or the sender of a request, chooses what a file has, whatever its name ends with.
"""

from PIL import EpsImagePlugin, Image

FORMAT = "EPS"


def forbid_programs() -> None:
    """Let Pillow start no Ghostscript in this process; reading such an image is an error."""
    EpsImagePlugin.gs_binary = False


def is_program(image: Image.Image) -> bool:
    """Whether the image is a program."""
    return image.format == FORMAT
