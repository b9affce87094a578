"""Built-in scorers of `spec.reward.scorers` and their settings."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from .base import StrictModel

# Host, valid port, path. The port is opened in a NetworkPolicy. User and password are not allowed.
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
SERVER_URL = rf"^https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:({_PORT}))?([/?#][^\s\x00-\x1f]*)?$"


class ScorerSettings(StrictModel):
    """Settings of a built-in scorer: the keyword arguments of its `compute_score`, under their Python names."""

    model_config = ConfigDict(alias_generator=None)


class BrightnessSettings(ScorerSettings):
    """`brightness`: none."""


class ColorSettings(ScorerSettings):
    """`color`: how much of one primary color."""

    color: Literal["red", "green", "blue"] = Field(default="red", description="The color to reward.")


class JpegSettings(ScorerSettings):
    """`jpeg`: compressibility."""

    quality: int = Field(default=95, ge=1, le=100, description="Quality of the JPEG encoder.")


class JpegCompressibilitySettings(JpegSettings):
    """`jpeg_compressibility`: the same under its name in the paper."""


class ShapesSettings(ScorerSettings):
    """`shapes`: whether the image shows what the prompt asks for."""

    correct_weight: float = Field(
        default=0.5, ge=0, le=1, description="Weight of 'entirely correct' against 'partly correct'."
    )


BUILTIN: dict[str, type[ScorerSettings]] = {
    "brightness": BrightnessSettings,
    "color": ColorSettings,
    "jpeg": JpegSettings,
    "jpeg_compressibility": JpegCompressibilitySettings,
    "shapes": ShapesSettings,
}
