"""The reference's import paths of scorers, for the reward functions of users; the scorers are in `reward_loop.rewards`.

Runs do not import this package: settings that name its modules become the built-in scorers
(docs/from-verl-omni/switching.md).
"""

from typing import Any

from torch import Tensor

from verl_omni.reward_loop.rewards import ADVICE, SCORERS, UNAVAILABLE, get_scorer
from verl_omni.reward_loop.scorer_signature import PLURAL, parameters_of, signature_of
from verl_omni.utils.pixels import as_pixels


def default_compute_score_image(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Score an image, or a video, with the built-in scorer that is called like its data source.

    Args:
        data_source: name of the scorer.
        solution_image: uint8, or floats from 0 to 1: [3, H, W], or of a video [T, 3, H, W]. A scorer of images takes
            [1, 3, H, W] too, and `jpeg_compressibility` the first of [N, 3, H, W].
        ground_truth: reference that the scorer compares with.
        extra_info: further fields of the row, such as `prompt`.
        kwargs: settings of the scorer; those that it does not take are dropped.

    Returns:
        A number, or a dict with `score`; of a scorer that asks a server, an awaitable of that.

    Raises:
        NotImplementedError: no scorer has this name; the message lists them, or says why the reference's is missing.
        TypeError: a setting that the scorer needs is not given.
    """
    if data_source in UNAVAILABLE:
        raise NotImplementedError(f"the scorer {data_source} is not available: {UNAVAILABLE[data_source]}; {ADVICE}")
    if data_source not in SCORERS:
        raise NotImplementedError(f"no scorer for data_source {data_source!r}; scorers are {', '.join(SCORERS)}")
    scorer = get_scorer(data_source)
    known = parameters_of(scorer)
    settings = {name: value for name, value in kwargs.items() if name in known}
    if missing := signature_of(scorer).problems(settings):
        raise TypeError(f"the scorer {data_source}: {'; '.join(missing)}")
    pixels = as_pixels(solution_image)
    if pixels.ndim == 4 and (len(pixels) == 1 or data_source == "jpeg_compressibility"):
        pixels = pixels[0]
    sample = {
        "data_source": data_source,
        "solution_image": pixels,
        "ground_truth": ground_truth,
        "extra_info": extra_info or {},
    }
    if PLURAL["data_source"] in known:
        return scorer(**{PLURAL[name]: [value] for name, value in sample.items()}, **settings)[0]
    return scorer(**sample, **settings)
