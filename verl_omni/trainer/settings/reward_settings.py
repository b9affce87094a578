"""Settings of the reward, checked before anything starts: which scorer runs, what it takes, how several are combined.

A user's file is parsed and not run: it may load a model when it is imported, which only reward workers should do.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.reward_loop.part_settings import TRAINER, held_out_scorers, weight_problem
from verl_omni.reward_loop.rewards import ADVICE, SCORERS, UNAVAILABLE, get_scorer, modality, setting_problems
from verl_omni.reward_loop.scorer_signature import (
    ScorerNotFound,
    ScorerNotLoaded,
    Signature,
    nearest_name,
    signature_in_file,
    signature_of,
    takes_groups,
)
from verl_omni.reward_loop.setting_types import EVALUATION, OWN_SETTINGS
from verl_omni.settings_schema.declarations import SEVERAL_SCORERS
from verl_omni.trainer.settings.module_source import SourceNotFound, find_source
from verl_omni.trainer.settings.reference_modules import MANAGERS, ONE

# What a scorer's settings need not have where the run serves a judge itself (reward.reward_model).
SERVED = {"base_url": "http://reward-router", "model": "reward.reward_model.model_path"}
FUNCTION = "reward.custom_reward_function"
NORMALIZED = "normalized_sum"  # value of reward.aggregation
OF_TEXTS = ("naive", "dapo", "gdpo", "rate_limited", "remote")  # verl's managers, by their registered names


def is_group_wise(reward: DictConfig) -> bool:
    """Whether a scorer gets all samples of a prompt together. A function that does not exist does not."""
    function = reward.custom_reward_function
    parts = [
        dict(part) | {"name": part.get("name") or ("compute_score" if part.get("path") else key)}
        for key, part in reward.reward_functions.items()
    ]
    parts += [{"path": function.path, "name": function.name}] if function.path else []
    parts += [{**(reward.scorer_kwargs or {}), "name": reward.scorer}] if reward.scorer else []
    return any(_is_group_wise(part) for part in parts)


def _is_group_wise(given: Mapping[str, Any]) -> bool:
    path = given.get("path")
    name = str(given["name"])
    if not path and name == "python":
        file, _, name = str(given.get("function", "")).rpartition(":")
        path = file if file.endswith(".py") else f"pkg://{file}"
    if not path:
        return name in SCORERS and takes_groups(get_scorer(name))
    try:
        signature = _signature(str(path), name)
    except (SourceNotFound, ScorerNotFound):  # `find_problems` names it
        return False
    return signature is not None and signature.group_wise


def find_problems(reward: DictConfig) -> list[str]:
    """Messages about invalid settings of `reward`; none if another reward manager runs."""
    manager = reward.reward_manager
    if manager.source == "register" and manager.name in OF_TEXTS:
        return [f"reward.reward_manager.name: {manager.name} of verl scores texts; write source=importlib and {ONE}"]
    if manager.source != "importlib" or manager.module.path != MANAGERS:
        return []
    if manager.name not in (ONE, SEVERAL_SCORERS):
        return [f"reward.reward_manager.name: {manager.name} does not exist; write {ONE} or {SEVERAL_SCORERS}"]
    return list(_of_several(reward) if manager.name == SEVERAL_SCORERS else _of_one(reward))


def normalization_problems(config: DictConfig) -> Iterator[str]:
    """Messages about settings of the trainer that do not work with normalized scores."""
    reward = config.reward
    setting = f"reward.aggregation: {NORMALIZED}"
    if reward.aggregation != NORMALIZED:
        return
    manager = reward.reward_manager
    if manager.source != "importlib" or manager.module.path != MANAGERS or manager.name != SEVERAL_SCORERS:
        yield f"{setting} needs the scores of each scorer; write reward.reward_manager.name={SEVERAL_SCORERS}"
    if config.actor_rollout_ref.rollout.n < 2:
        yield f"{setting} compares the samples of a prompt; write at least 2 as actor_rollout_ref.rollout.n"
    if config.algorithm.sample_source == "offline":
        yield f"{setting} does not go with algorithm.sample_source=offline, which trains on preferences, not on scores"


def evaluation_problems(config: DictConfig) -> Iterator[str]:
    """Messages about scorers of evaluations, and what depends on them, in a run that has none."""
    held_out = held_out_scorers(config.reward.reward_functions)
    if held_out and not config.data.val_files:
        yield f"reward.reward_functions.{held_out[0]}.use: {EVALUATION} needs held-out prompts; write data.val_files"
    if config.reward.early_stopping_patience is not None and not held_out:
        yield f"reward.early_stopping_patience: is not read without a scorer with use={EVALUATION}"


def sample_problems(config: DictConfig) -> Iterator[str]:
    """Messages about scorers of a modality that the model does not generate: audio, images or videos.

    Models of a user-defined family are not checked.
    """
    from verl_omni.pipelines.registry import FAMILIES, family

    reward = config.reward
    architecture = config.actor_rollout_ref.model.architecture
    named = {"reward.scorer": (reward.scorer, reward.scorer_kwargs)}
    named |= {
        f"reward.reward_functions.{key}": (part.get("name") or key, part)
        for key, part in reward.reward_functions.items()
        if not part.get("path")
    }
    for where, (name, settings) in named.items():
        takes = modality(name) if name in SCORERS else None
        if takes == "audio" and architecture not in FAMILIES.registered:
            yield (
                f"{where}: {name} scores audio, and {architecture} generates none; a model family of "
                "your own may (docs/guides/own-family.md)"
            )
        pickled = name in ("http", "http_batch") and settings.get("protocol") == "pickle"
        if (takes == "image" or pickled) and family(architecture).videos:
            protocol = " with protocol=pickle" if pickled else ""
            yield (
                f"{where}: {name}{protocol} takes images, and {architecture} generates videos; write a scorer of "
                "videos, or a function of your own (docs/reference/rewards.md)"
            )
        if takes == "video" and not (family(architecture).videos or architecture in FAMILIES.registered):
            yield (
                f"{where}: {name} takes videos, and {architecture} generates images; write a scorer of images "
                "(docs/reference/rewards.md)"
            )


def _of_several(reward: DictConfig) -> Iterator[str]:
    for name in ("scorer", "scorer_kwargs", "custom_reward_function.path", "custom_reward_function.reward_kwargs"):
        if OmegaConf.select(reward, name):
            yield f"reward.{name}: is not read by {SEVERAL_SCORERS}; write the scorer into reward.reward_functions"
    parts: dict[str, Any] = OmegaConf.to_container(reward.reward_functions, resolve=True)  # type: ignore[assignment]
    if not parts:
        yield f"reward.reward_functions: must have a scorer with {SEVERAL_SCORERS}"
    elif problem := weight_problem(parts):
        yield problem
    served = bool(reward.reward_model.enable)
    for key, part in parts.items():
        where = f"reward.reward_functions.{key}"
        settings = {name: value for name, value in part.items() if name not in OWN_SETTINGS}
        if path := part.get("path"):
            pooled = part.get("pool") is not None
            yield from _of_function(
                where, "path", str(path), part.get("name") or "compute_score", settings, pooled=pooled
            )
        else:
            yield from _of_scorer(where, "name", str(part.get("name") or key), settings, served=served)


def _of_one(reward: DictConfig) -> Iterator[str]:
    if reward.reward_functions:
        yield f"reward.reward_functions: is not read by {ONE}; write reward.reward_manager.name={SEVERAL_SCORERS}"
    kwargs = OmegaConf.to_container(reward.scorer_kwargs, resolve=True)
    function = reward.custom_reward_function
    arguments = OmegaConf.to_container(function.reward_kwargs, resolve=True)
    if function.path is not None:
        for name in ("scorer", "scorer_kwargs"):
            if reward[name]:
                yield f"reward.{name}: is not read with {FUNCTION}.path; remove one of them"
        yield from _of_function(FUNCTION, "path", str(function.path), function.name, arguments, "reward_kwargs.")
        return
    if arguments:
        yield f"{FUNCTION}.reward_kwargs: is not read without {FUNCTION}.path; write reward.scorer_kwargs"
    if reward.scorer is not None:  # otherwise each row's data source names a scorer
        served = bool(reward.reward_model.enable)
        yield from _of_scorer("reward", "scorer", str(reward.scorer), kwargs, "scorer_kwargs.", served=served)


def _of_scorer(
    where: str, setting: str, name: str, given: dict[str, Any], inside: str = "", *, served: bool
) -> Iterator[str]:
    """A scorer of this package; the scorer `python` passes settings on to the function that it names.

    Args:
        served: whether the run serves a judge, which scorers ask that name no other.
    """
    if name in UNAVAILABLE:
        yield f"{where}.{setting}: {name} is not available: {UNAVAILABLE[name]}; {ADVICE}"
        return
    if name not in SCORERS:
        yield f"{where}.{setting}: unknown scorer {name}{nearest_name(name, SCORERS)}"
        return
    if name == "python":
        file, _, function = str(given.get("function", "")).rpartition(":")
        if not (file and function.isidentifier()):
            yield f"{where}.{inside}function: must be given as path/to/file.py:name or package.module:name"
            return
        arguments = {key: value for key, value in given.items() if key != "function"}
        path = file if file.endswith(".py") else f"pkg://{file}"
        yield from _of_function(where, f"{inside}function", path, function, arguments, inside)
        return
    try:
        signature = signature_of(get_scorer(name))
    except ScorerNotLoaded as error:
        yield f"{where}.{setting}: {error}"
        return
    complete = (
        {**SERVED, **given} if served and SERVED.keys() <= signature.settings and not given.get("base_url") else given
    )
    # Values are checked only under right names.
    yield from (f"{where}.{setting}: {name}: {text}" for text in signature.function_problems())
    problems = signature.problems(given) or setting_problems(name, complete)
    yield from (f"{where}.{inside}{problem}" for problem in problems)


def _of_function(
    where: str, setting: str, path: str, name: str, given: Collection[str], inside: str = "", *, pooled: bool = False
) -> Iterator[str]:
    if isinstance(given, Mapping) and given.get("device") == TRAINER:
        yield (
            f"{where}.{inside}device: only scorers of this package share the trainer's accelerators, whose memory they "
            "free after a batch; write cpu, or cuda for a dedicated accelerator"
        )
    try:
        signature = _signature(path, name)
    except (SourceNotFound, ScorerNotFound) as error:
        yield f"{where}.{setting}: {error}"
        return
    if signature is not None:
        yield from (f"{where}.{setting}: {name}: {text}" for text in signature.function_problems())
        set_by_pool = signature.settings & {"device"} if pooled else set()
        yield from (f"{where}.{inside}{problem}" for problem in signature.problems({*given, *set_by_pool}))


def _signature(path: str, name: str) -> Signature | None:
    """Signature of a user's function; None where only running its module would show it.

    Raises:
        SourceNotFound, ScorerNotFound: there is no such file, module or function.
    """
    file = find_source(path)
    return None if file is None else signature_in_file(file, name)
