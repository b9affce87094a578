"""Registry of scorers; a scorer's module is imported on first use.

Every scorer is `compute_score(data_source, solution_image, ground_truth, extra_info, **settings)`, takes a uint8
image [3, H, W], and returns a number, or a dict with `score` and further numbers, the same keys for every sample.
A scorer with the parameters `data_sources, solution_images, ground_truths, extra_infos` takes lists of them, and
returns a list. `http_batch` and the scorers with a model do so, and a user's function may.
`latent_http` takes latents, `clap` the audio of a sample. The scorers in `OF_IMAGES` refuse videos [T, 3, H, W].
A scorer's module may have `setting_problems(settings)`, which finds problems before anything starts.
docs/reference/rewards.md lists what each needs and returns.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.setting_types import value_problems
from verl_omni.utils.registry import Registry, load

Scorer = Callable[..., Any]
_OWN = (
    "aesthetic",
    "brightness",
    "clap",
    "clip_score",
    "color",
    "genrm_ocr",
    "hpsv3",
    "http",
    "http_batch",
    "jpeg",
    "jpeg_compressibility",
    "latent_http",
    "pickscore",
    "python",
    "shapes",
    "unified_reward",
)
OF_IMAGES = ("shapes",)
# Import paths; users add theirs with `verl_omni.extensions`.
SCORERS = Registry("scorer", {name: f"{__name__}.{name}:compute_score" for name in _OWN})
# Scorers of the reference that do not exist here, and why.
UNAVAILABLE = {
    "choice": "it compares the answers of a language model, and no model here is trained on texts",
    "imagebind": "no working package fits the locked torchvision, and the license of the weights excludes commercial "
    "use",
}
ADVICE = "serve it yourself and use the scorer http, or write a function of your own (docs/reference/rewards.md)"


def check_picture(sample: Tensor, scorer: str) -> None:
    """Refuse a video, which a scorer of images would misread.

    Raises:
        ValueError: `sample` is not [3, H, W].
    """
    if sample.ndim != 3:
        raise ValueError(f"the scorer {scorer} takes images [3, H, W], and got a video {list(sample.shape)}")


def get_scorer(name: str) -> Scorer:
    """The scorer called `name`.

    Raises:
        ValueError: it does not exist; the message lists the scorers, or says why the reference's is missing.
    """
    if name in UNAVAILABLE:
        raise ValueError(f"The scorer {name} is not available: {UNAVAILABLE[name]}; {ADVICE}")
    if name not in SCORERS:
        raise ValueError(f"Unknown scorer {name!r}; one of {', '.join(SCORERS)}")
    scorer: Scorer = load(SCORERS[name])
    return scorer


def setting_problems(name: str, given: Mapping[str, Any]) -> list[str]:
    """Messages about invalid values of a scorer's settings, and about what is missing on this machine.

    Raises:
        ValueError: the scorer does not exist.
    """
    scorer = get_scorer(name)
    if name in _OWN and (problems := list(value_problems(scorer, given))):
        return problems
    module = importlib.import_module(scorer.__module__)
    check: Callable[[Mapping[str, Any]], list[str]] | None = getattr(module, "setting_problems", None)
    return check(given) if check else []
