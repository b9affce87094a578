"""Objects in an image, by Mask2Former (arXiv:2112.01527), and their colors, by CLIP, as in GenEval (arXiv:2310.11513).

GenEval runs mmdet's Mask2Former with Swin-S; this is the same model in transformers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.models.clip_model import CONFIG, ClipModel, LoadableModel, load_scoring_model, unit
from verl_omni.reward_loop.models.weight_files import failures, folder_with
from verl_omni.reward_loop.rewards.geneval.conditions import COLOR_NAMES, MOST_OBJECTS, DetectedObject
from verl_omni.reward_loop.setting_types import MODEL
from verl_omni.utils.model_folder import model_folder

# GenEval's names of classes, where COCO has another one.
COCO_NAMES = {"computer keyboard": "keyboard", "computer mouse": "mouse", "tv remote": "remote"}
BACKGROUND = 0x99  # gray value around an object whose color is asked
TEMPLATES = ("a photo of a {color} {name}", "a photo of a {color}-colored {name}", "a photo of a {color} object")


@dataclass(frozen=True, slots=True)
class ObjectDetector(LoadableModel):
    """A Mask2Former with its image processor, loaded from (model, device).

    Attributes:
        labels: number of each class, by its name.
    """

    model: Any
    image_processor: Any
    labels: dict[str, int]
    device: torch.device

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        from transformers import AutoImageProcessor, Mask2FormerForUniversalSegmentation

        model, device = source
        folder = model_folder(model, MODEL)
        detector = load_scoring_model(Mask2FormerForUniversalSegmentation, "mask2former", folder, device)
        return cls(
            model=detector,
            image_processor=AutoImageProcessor.from_pretrained(folder),
            labels={name: int(number) for number, name in detector.config.id2label.items()},
            device=torch.device(device),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        return failures(lambda: folder_with(*source, MODEL, "a Mask2Former model", CONFIG))

    @torch.inference_mode()
    def detect(self, image: Tensor, names: Iterable[str], confidence: float) -> dict[str, list[DetectedObject]]:
        """The objects of some classes in an image, uint8 [3, H, W], the most certain first.

        Args:
            confidence: objects that the detector is not more certain of are left out.

        Raises:
            ValueError: the detector has no class of a name.
        """
        known = {name: self.labels.get(COCO_NAMES.get(name, name)) for name in sorted(names)}
        for name, number in known.items():
            if number is None:
                raise ValueError(
                    f"geneval: the detector has no class {name!r}; it has {', '.join(sorted(self.labels))}"
                )
        # Without padding, the masks cover the image.
        inputs = self.image_processor(images=[image], return_tensors="pt").to(self.device)
        output = self.model(**inputs)
        detected = instances(output.class_queries_logits[0], output.masks_queries_logits[0], tuple(image.shape[1:]))
        return {
            name: [instance for number, instance in detected if number == wanted and instance.confidence > confidence][
                :MOST_OBJECTS
            ]
            for name, wanted in known.items()
        }


def instances(classes: Tensor, masks: Tensor, size: tuple[int, ...]) -> list[tuple[int, DetectedObject]]:
    """The objects that Mask2Former sees, with their classes, the most certain first.

    As in Mask2Former's inference of instances: of all pairs of a query and a class, as many as there are queries are
    kept; the confidence is the class's probability times the mean probability of the mask's pixels.

    Args:
        classes: logits [queries, classes + 1], the last of `no object`. masks: logits [queries, h, w].
        size: height and width of the image.
    """
    queries, count = classes.shape[0], classes.shape[1] - 1
    probabilities, pairs = classes.float().softmax(dim=-1)[:, :-1].flatten().topk(queries)
    logits = torch.nn.functional.interpolate(masks[None].float(), size=size, mode="bilinear", align_corners=False)[
        0
    ].cpu()
    objects = []
    for probability, pair in zip(probabilities.tolist(), pairs.tolist(), strict=True):
        seen = logits[pair // count]
        mask = seen > 0
        if not mask.any():
            continue
        rows = mask.any(dim=1).nonzero()
        columns = mask.any(dim=0).nonzero()
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        confidence = probability * float(seen[mask].sigmoid().mean())
        objects.append((pair % count, DetectedObject(box, confidence, mask)))
    return sorted(objects, key=lambda entry: -entry[1].confidence)


@dataclass(frozen=True, slots=True)
class ObjectColors:
    """The colors of objects of an image.

    Attributes:
        load: returns the CLIP model, which most prompts do not need.
        image: uint8 [3, H, W].
    """

    load: Callable[[], ClipModel]
    image: Tensor

    def of(self, objects: Sequence[DetectedObject], name: str) -> list[str]:
        """The color of each object of a class, as the cosine with the mean embedding of the color's texts decides."""
        if not objects:
            return []
        clip = self.load()
        texts = [template.format(color=color, name=name) for color in COLOR_NAMES for template in TEMPLATES]
        colors = unit(clip.embed_prompts(texts).view(len(COLOR_NAMES), len(TEMPLATES), -1).mean(dim=1))
        nearest = (clip.embed_images([self._alone(detected) for detected in objects]) @ colors.T).argmax(dim=1)
        return [COLOR_NAMES[number] for number in nearest.tolist()]

    def _alone(self, each: DetectedObject) -> Tensor:
        """The object's box, in which everything else is gray."""
        left, top, right, bottom = (int(edge) for edge in each.box)
        alone = torch.where(each.mask, self.image, torch.full_like(self.image, BACKGROUND))
        return alone[:, top:bottom, left:right]
