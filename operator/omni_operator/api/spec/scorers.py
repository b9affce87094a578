"""Built-in scorers of `spec.reward.scorers` and their settings."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints
from typing_extensions import override

from omni_operator.api.base import StrictModel, Violation, remote_scheme

from .model import MODEL_ID, NO_HOME

# Host, valid port, path. The port is opened in a NetworkPolicy. User and password are not allowed.
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
SERVER_URL = rf"^https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:({_PORT}))?([/?#][^\s\x00-\x1f]*)?$"


class ScorerSettings(StrictModel):
    """Settings of a built-in scorer: the keyword arguments of its `compute_score`, under their Python names."""

    model_config = ConfigDict(alias_generator=None)
    # Settings that are files, and settings that are folders of models or repositories of the hub.
    files: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def paths(cls, given: Mapping[str, object]) -> dict[str, str]:
        """The settings among `given` that are paths."""
        named = {name: str(given[name]) for name in (*cls.files, *cls.models) if name in given}
        return {name: value for name, value in named.items() if name in cls.files or not MODEL_ID.match(value)}

    @override
    def violations(self) -> Iterator[Violation]:
        for name, path in self.paths(self.model_dump()).items():
            if path.startswith("~"):
                yield Violation((name,), NO_HOME)
            elif scheme := remote_scheme(path):
                yield Violation((name,), f"{scheme}:// is not supported: write a path")


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


class JudgeSettings(ScorerSettings):
    """Settings of a scorer that asks a vision-language model on an OpenAI-compatible server."""

    base_url: Annotated[str, StringConstraints(max_length=2048, pattern=SERVER_URL)] | None = Field(
        default=None,
        description="The judge's URL up to and with /v1: http:// or https://, host, optional port, path. Default: the "
        "judge of spec.reward.model.",
    )
    model: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None, description="The name that the server at base_url serves the model under."
    )
    api_key_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        default=None, description="Name of the environment variable with the API key."
    )
    timeout: float = Field(default=60.0, gt=0, le=3600, description="Timeout of one attempt, in seconds.")
    attempts: int = Field(default=3, ge=1, le=100, description="Attempts while the judge is unreachable or busy.")
    max_tokens: int = Field(default=256, ge=1, description="Upper limit of an answer.")
    frame_interval: int = Field(default=4, ge=1, description="Of a video, the judge gets each frame of this distance.")


class GenrmOcrSettings(JudgeSettings):
    """`genrm_ocr`: whether the image shows the text `ground_truth`."""

    question: str | None = Field(default=None, description="What the judge is asked.")


class UnifiedRewardSettings(JudgeSettings):
    """`unified_reward`: a judge's rating."""

    max_tokens: int = Field(default=512, ge=1, description="Upper limit of an answer.")
    template: Annotated[str, StringConstraints(pattern=r"\{prompt\}")] | None = Field(
        default=None, description="What the judge is asked, with {prompt} in place of the prompt."
    )
    lowest: float = Field(default=1.0, description="The worst rating.")
    highest: float = Field(default=5.0, description="The best rating.")

    @override
    def violations(self) -> Iterator[Violation]:
        yield from super().violations()
        if self.lowest >= self.highest:
            yield Violation(("lowest",), f"{self.lowest:g} must be less than highest ({self.highest:g})")


class LatentHttpSettings(ScorerSettings):
    """`latent_http`: a reward server that takes latents."""

    server_url: Annotated[str, StringConstraints(max_length=2048, pattern=SERVER_URL)] = Field(
        description="URL that the latents of a sample are posted to: http:// or https://, host, optional port, path."
    )
    timeout: float = Field(default=60.0, gt=0, le=3600, description="Timeout of one attempt, in seconds.")
    max_retries: int = Field(default=2, ge=0, le=100, description="Attempts after the first.")
    retry_backoff: float = Field(default=1.0, ge=0, le=3600, description="Seconds before the second attempt.")
    noise_level: float = Field(default=0.0, ge=0, description="Of the noise that the server adds to the latents.")
    noise_seed: int | None = Field(default=None, description="Seed of that noise.")
    score_scale: float = Field(default=1.0, description="The server's score is multiplied by this.")
    score_bias: float = Field(default=0.0, description="Added to the score after that.")


ModelName = Annotated[str, StringConstraints(min_length=1)]
Device = Annotated[str, StringConstraints(pattern=r"^[a-z]+(:[0-9]+)?$")]
DEVICE = "Device of the model: cpu, trainer (the trainer's accelerators), or an accelerator of its own such as cuda."
FOLDER = "a folder, or a repository that is in the hub cache."


class PickscoreSettings(ScorerSettings):
    """`pickscore`: preference of people for an image of its prompt."""

    models = ("model_name_or_path", "processor_name_or_path")
    model_name_or_path: ModelName = Field(
        default="yuvalkirstain/PickScore_v1", description=f"The fine-tuned CLIP model: {FOLDER}"
    )
    processor_name_or_path: ModelName = Field(
        default="laion/CLIP-ViT-H-14-laion2B-s32B-b79K", description=f"Image processor and tokenizer: {FOLDER}"
    )
    device: Device = Field(default="cpu", description=DEVICE)
    score_scale: float = Field(default=1.0, description="Factor of the score; 1/26 is Flow-GRPO's.")


class Hpsv3Settings(ScorerSettings):
    """`hpsv3`: preference of people, predicted by a vision-language model."""

    models = ("model_name_or_path", "processor_name_or_path")
    model_name_or_path: ModelName = Field(
        default="MizzenAI/HPSv3",
        description="The weights: a folder with HPSv3.safetensors, that file, or a repository in the hub cache.",
    )
    processor_name_or_path: ModelName = Field(
        default="Qwen/Qwen2-VL-7B-Instruct",
        description=f"The base model, of which the weights are not read: {FOLDER}",
    )
    device: Device = Field(default="cpu", description=DEVICE)
    score_scale: float = Field(default=1.0, description="Factor of the score.")


class ClapSettings(ScorerSettings):
    """`clap`: similarity of a sample's audio and its prompt."""

    models = ("model_name_or_path",)
    model_name_or_path: ModelName = Field(default="laion/larger_clap_general", description=f"A CLAP model: {FOLDER}")
    device: Device = Field(default="cpu", description=DEVICE)


class ClipScoreSettings(ScorerSettings):
    """`clip_score`: similarity of an image and its prompt."""

    models = ("model_name_or_path",)
    model_name_or_path: ModelName = Field(default="openai/clip-vit-base-patch32", description=f"A CLIP model: {FOLDER}")
    device: Device = Field(default="cpu", description=DEVICE)


class AestheticSettings(ScorerSettings):
    """`aesthetic`: LAION's predictor."""

    files = ("head_path",)
    models = ("model_name_or_path",)
    head_path: ModelName = Field(description="The predictor's weights, a .pth or .safetensors file.")
    model_name_or_path: ModelName = Field(
        default="openai/clip-vit-large-patch14",
        description=f"The CLIP model that the predictor was trained on: {FOLDER}",
    )
    device: Device = Field(default="cpu", description=DEVICE)


BUILTIN: dict[str, type[ScorerSettings]] = {
    "aesthetic": AestheticSettings,
    "brightness": BrightnessSettings,
    "clap": ClapSettings,
    "clip_score": ClipScoreSettings,
    "color": ColorSettings,
    "genrm_ocr": GenrmOcrSettings,
    "hpsv3": Hpsv3Settings,
    "jpeg": JpegSettings,
    "jpeg_compressibility": JpegCompressibilitySettings,
    "latent_http": LatentHttpSettings,
    "pickscore": PickscoreSettings,
    "shapes": ShapesSettings,
    "unified_reward": UnifiedRewardSettings,
}
# Scorers of the reference that do not exist here, and why.
UNAVAILABLE = {
    "choice": "it compares the answers of a language model, and no model here is trained on texts",
    "imagebind": "no working package fits the locked torchvision, and the license of the weights excludes commercial "
    "use",
}
