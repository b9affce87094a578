"""Input images of prompts: where a row's images are, and messages that hold them."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from verl_omni.pipelines.input_images import InputImages
from verl_omni.utils.postscript import is_program

PLACE = "<image>"  # placeholder of an image in a prompt, as in verl's data sets
Messages = list[dict[str, Any]]


DEEP = ("I", "F")  # how modes of PIL begin that have more than 8 bits; their conversion to RGB cuts values off


class ImageNotFound(ValueError):
    """An image of a prompt cannot be read."""


def open_image(image: Any, folder: Path) -> Image.Image:
    """An image of a row, upright as its EXIF orientation says; unless it has one, pixels are read when they are needed.

    Args:
        image: an image of PIL, its path, the bytes of its file, or a mapping with `bytes` or `path`, as Hugging Face's
            datasets have it, or with `image`, as verl's have it. A path may be a `file://` URL.
        folder: that relative paths start from: the folder of the row's file.

    Raises:
        ImageNotFound: there is no such file, it is no image, is PostScript, or has more than 8 bits in each channel.
    """
    content, path = _content_and_path(image)
    if isinstance(path, Image.Image):
        return _upright(shallow(path))
    if content is None and not isinstance(path, str):
        raise ImageNotFound(f"an image must be a path, or a mapping with bytes or a path, not {type(image).__name__}")
    try:
        if content is not None:
            return _upright(shallow(Image.open(BytesIO(content))))
        file = folder / str(path).removeprefix("file://")
        if not file.is_file():
            raise ImageNotFound(f"there is no image {file}")
        return _upright(shallow(Image.open(file)))
    except UnidentifiedImageError as error:
        raise ImageNotFound(f"{path or 'its bytes'}: the file is no image") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageNotFound(f"{path or 'its bytes'}: cannot be read: {error}") from error


def as_rgb(image: Image.Image) -> Image.Image:
    """The image with its pixels read, in the mode RGB. Raises `ImageNotFound` if its file is damaged."""
    try:
        return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # whatever PIL's reader of the format raises
        file = getattr(image, "filename", "") or "its bytes"
        raise ImageNotFound(f"{file}: the file is damaged: {error}") from error


def _content_and_path(image: Any) -> tuple[bytes | None, Any]:
    """The bytes of an image's file, and its path or the image itself."""
    if isinstance(image, bytes):
        return image, None
    if not isinstance(image, Mapping):
        return None, image
    path = image.get("path")
    return image.get("bytes") or None, image.get("image") if path is None else path


def shallow(image: Image.Image) -> Image.Image:
    """The image. Raises `ImageNotFound` if it has more than 8 bits in each channel, or is a program."""
    if is_program(image):
        raise ImageNotFound("the file is PostScript, a program that makes an image: convert it to PNG")
    if image.mode.startswith(DEEP):
        raise ImageNotFound(f"its pixels have the mode {image.mode}, which has more than 8 bits: convert it to RGB")
    return image


def _upright(image: Image.Image) -> Image.Image:
    if image.format == "PNG" and "exif" not in image.info:
        return image  # EXIF behind the pixels, which no camera writes: looking for it would read them all
    return ImageOps.exif_transpose(image) if image.getexif().get(ExifTags.Base.Orientation, 1) != 1 else image


def with_images(messages: Messages, images: Sequence[Any]) -> Messages:
    """Messages whose parts are text and `images`: where the text has `<image>`, otherwise in front of the first.

    Contents that are parts already have places of their own: parts of the type `image` without an image.

    Raises:
        ValueError: the text has places for another number of images.
    """
    places = count_places(messages)
    alone = places == 0 and any(
        isinstance(message["content"], str) for message in messages if message["role"] == "user"
    )
    if places != len(images) and not alone:
        raise ValueError(f"a prompt has {places} times {PLACE}, and its row {len(images)} images")
    left = list(images)
    filled_messages = []
    for message in messages:
        if not isinstance(message["content"], str):
            filled = [image_part(left.pop(0)) if _is_place(part) else part for part in message["content"]]
            filled_messages.append({**message, "content": filled})
            continue
        parts: list[dict[str, Any]] = []
        for number, text in enumerate(message["content"].split(PLACE)):
            if number:
                parts.append(image_part(left.pop(0)))
            if text:
                parts.append({"type": "text", "text": text})
        if places == 0 and message["role"] == "user" and left:
            parts = [*map(image_part, left), *parts]
            left = []
        filled_messages.append({**message, "content": parts})
    return filled_messages


def count_places(messages: Messages) -> int:
    """Number of places in messages where images of their row belong."""
    contents = [message["content"] for message in messages]
    return sum(
        content.count(PLACE) if isinstance(content, str) else sum(map(_is_place, content)) for content in contents
    )


def _is_place(part: Mapping[str, Any]) -> bool:
    """Whether a part of a message is of an image that its row has in another column."""
    return part.get("type") == "image" and not any(part.get(name) for name in ("image", "path", "bytes"))


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The images of messages, as far as they are images of PIL."""
    contents = [message["content"] for message in messages if not isinstance(message["content"], str)]
    images = [part.get("image") for parts in contents for part in parts]
    return [image for image in images if isinstance(image, Image.Image)]


def image_part(image: Any) -> dict[str, Any]:
    """The part of a message that is an image."""
    return {"type": "image", "image": image}


def problem_of_row(images: Sequence[Any], accepted: InputImages | None, pipeline: Any) -> str | None:
    """Why a row cannot have these images; None if it can.

    Args:
        images: images of PIL. accepted: what the model's family says; None: its prompts have no images.
        pipeline: settings of the diffusion pipeline.
    """
    count = 0 if accepted is None else accepted.COUNT
    if len(images) != count:
        return f"it has {len(images)} images, and the model takes {count or 'none'} in each prompt"
    problems = (accepted.problem(image.size, pipeline) for image in images) if accepted else ()
    return next((problem for problem in problems if problem), None)
