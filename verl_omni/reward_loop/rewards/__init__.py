"""Scorers, one module each: the modules of this folder, and those that installed packages offer.

A scorer's module has:

- `compute_score(data_source, solution_image, ground_truth, extra_info, **settings)`, which gets a uint8 image [3, H, W]
  or video [T, 3, H, W] and returns a number, or a dict with `score` and further numbers, the same keys for every
  sample. With the parameters `data_sources, solution_images, ground_truths, extra_infos` it takes lists of them, and
  returns a list. With a parameter `groups` as well, a call has all samples of each of its prompts, and equal `groups`
  are the same prompt. Further parameters are its settings: their types and defaults are what a job may write. The
  first paragraph of its docstring is its line in docs/reference/rewards.md.
- `MODALITY`, if it takes something else: `image` (no videos), `video` (no images), `latent`, or `audio` (of
  `extra_info`).
- `READS_TEXT = True`, if nothing but the text in an image counts.
- `conflicts(settings)`, PURE, if settings may not fit together, and `setting_problems(settings)`, if it needs something
  on the machine. Both return messages that begin with a setting's name and a colon.
- `MODEL_CLASS`, the import path of the `LoadableModel` that its settings name, and `ASKS_JUDGE = True`, if it has the
  settings of a judge: what they need is checked here.

The operator and `drl` read these modules too, without torch: a module imports machine-learning libraries inside its
functions. A package of a user adds a scorer by an entry point of the group `verl_omni.scorers`
(docs/reference/rewards.md).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from verl_omni.reward_loop.scorer_signature import (
    CLASS_ADVICE,
    ScorerNotLoaded,
    setting_fields,
    signature_of,
    value_problems,
)
from verl_omni.reward_loop.setting_types import MODEL, PROCESSOR
from verl_omni.utils.registry import Registry, load

if TYPE_CHECKING:
    from torch import Tensor

Scorer = Callable[..., Any]
ENTRY_POINTS = "verl_omni.scorers"
FUNCTION = "compute_score"
# By their paths: the operator reads this package, and imports neither torch nor what has effects.
MODEL_CHECK = "verl_omni.reward_loop.models.clip_model:load_problems"
CONNECTION_CHECK = "verl_omni.reward_loop.judge_client:connection_problems"
# settings of a scorer with a `MODEL_CLASS` that are arguments of `load_once`, in this order
SOURCE = (MODEL, PROCESSOR, "template_path", "device")


class Scorers(Registry[str]):
    """Import paths of the scorers' functions, by the scorers' names.

    To look through all installed distributions takes a tenth of the time of `drl validate`: that is done when a name is
    none of this folder's, or when all are listed.
    """

    @override
    def __getitem__(self, name: str) -> str:
        if name not in self._entries:
            self._add_installed()
        return super().__getitem__(name)

    @override
    def __iter__(self) -> Iterator[str]:
        self._add_installed()
        return super().__iter__()

    @override
    def __len__(self) -> int:
        self._add_installed()
        return super().__len__()

    @override
    def add(self, name: str, entry: str) -> None:
        self._add_installed()
        super().add(name, entry)

    def _add_installed(self) -> None:
        """Add the scorers that installed packages offer, once.

        Raises:
            ValueError: one has the name of a scorer of this folder, or of another package.
        """
        installed = _installed()
        if taken := _OWN.keys() & installed.keys():
            raise ValueError(f"an installed package has the scorer {min(taken)}, which exists already: rename it")
        self._own |= installed.keys()
        self._entries |= installed


@cache
def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points

    paths: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINTS):
        path = f"{point.module}:{point.attr or FUNCTION}"
        if paths.setdefault(point.name, path) != path:
            raise ValueError(
                f"installed packages have two scorers {point.name}, {paths[point.name]} and {path}: rename one"
            )
    return paths


_OWN = {module.name: f"{__name__}.{module.name}:{FUNCTION}" for module in pkgutil.iter_modules(__path__)}
# Import paths; users add theirs with an entry point, or with `verl_omni.extensions`.
SCORERS = Scorers("scorer", _OWN)
# Scorers of the reference that do not exist here, and why.
UNAVAILABLE = {
    "choice": "it compares the answers of a language model, and no model here is trained on texts",
    "imagebind": "no working package fits the locked torchvision, and the license of the weights excludes commercial "
    "use",
    "videoalign_native": "its options may differ from `videoalign`'s; write `videoalign`, with `template_path` and "
    "`video_fps`",
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
        ScorerNotLoaded: an installed package has it, and its module cannot be imported or has no such function.
    """
    if name in UNAVAILABLE:
        raise ValueError(f"The scorer {name} is not available: {UNAVAILABLE[name]}; {ADVICE}")
    if name not in SCORERS:
        raise ValueError(f"Unknown scorer {name!r}; one of {', '.join(SCORERS)}")
    path = SCORERS[name]
    try:
        scorer: Scorer = load(path)
    except Exception as error:  # the module of another package may do anything when it is imported
        advice = "; import libraries inside the function" if isinstance(error, ImportError) else ""
        raise ScorerNotLoaded(
            f"{name} cannot be loaded from {path}: {type(error).__name__}: {error}{advice}"
        ) from error
    if isinstance(scorer, type) or not callable(scorer):
        raise ScorerNotLoaded(f"{name} is no function: {path} is {scorer!r}; {CLASS_ADVICE}")
    return scorer


def scorer_module(name: str) -> ModuleType:
    """The module of the scorer called `name`; raises as `get_scorer`."""
    return importlib.import_module(get_scorer(name).__module__)


def modality(name: str) -> str:
    """What the scorer takes: `pixels` (an image or a video), `image`, `video`, `latent` or `audio`."""
    return getattr(scorer_module(name), "MODALITY", "pixels")


def has_setting(name: str, setting: str) -> bool:
    """Whether `name` is a scorer that has the setting."""
    return name in SCORERS and setting in signature_of(get_scorer(name)).settings


def leaves_much_open(name: str) -> bool:
    """Whether a policy can please the scorer at the cost of the rest of an image: a judge, or one that reads text."""
    return has_setting(name, "base_url") or (name in SCORERS and getattr(scorer_module(name), "READS_TEXT", False))


def doc_line(name: str) -> str:
    """The scorer's line in docs/reference/rewards.md: the first paragraph of its docstring."""
    return " ".join((inspect.getdoc(get_scorer(name)) or "").split("\n\n")[0].split())


def conflicts(name: str, settings: Mapping[str, Any]) -> list[str]:
    """PURE: messages about valid settings that do not fit together."""
    check: Callable[[Mapping[str, Any]], list[str]] | None = getattr(scorer_module(name), "conflicts", None)
    return check(settings) if check else []


def setting_problems(name: str, given: Mapping[str, Any]) -> list[str]:
    """Messages about invalid values of a scorer's settings, and about what is missing on this machine.

    Raises:
        ValueError: the scorer does not exist.
    """
    is_typed = name not in SCORERS.registered
    if is_typed and (problems := list(value_problems(get_scorer(name), given)) or conflicts(name, given)):
        return problems
    module = scorer_module(name)
    problems = _model_problems(name, module.MODEL_CLASS, given) if hasattr(module, "MODEL_CLASS") else []
    if getattr(module, "ASKS_JUDGE", False):
        problems += load(CONNECTION_CHECK)(given)
    check: Callable[[Mapping[str, Any]], list[str]] | None = getattr(module, "setting_problems", None)
    return [*problems, *(check(given) if check else ())]


def _model_problems(name: str, model_class: str, given: Mapping[str, Any]) -> list[str]:
    defaults = {setting: default for setting, (_, default) in setting_fields(get_scorer(name)).items()}
    source = [str(given.get(setting) or defaults[setting]) for setting in SOURCE if setting in defaults]
    problems: list[str] = load(MODEL_CHECK)(load(model_class), *source)
    return problems
