"""Decorators with which a user's module registers an algorithm, a loss, advantages, a model family or a reward.

The setting `actor_rollout_ref.model.external_lib` names the module; the driver and every worker import it
(docs/guides/own-family.md). Importing this module imports neither torch nor verl.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from verl_omni.utils.registry import path_of

_IMPORT_PATH = re.compile(r"\w+(\.\w+)*:\w+")
Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
__all__ = ["register_advantage", "register_algorithm", "register_family", "register_loss", "register_reward"]


def register_algorithm(name: str, *, like: str = "flow_grpo") -> Callable[[Class], Class]:
    """Decorator of a subclass of `workers.algorithms.base.TrainingAlgorithm`; its name is a `loss_mode`.

    Args:
        like: the algorithm of this package whose settings outside `diffusion_loss` it shares, with their defaults and
            the checks of what they need; settings of `diffusion_loss` are the fields of its own type `settings`.
    """

    _check_name("register_algorithm", name)

    def decorate(algorithm: Class) -> Class:
        if not hasattr(algorithm, "settings"):
            raise TypeError(
                f"register_algorithm({name!r}) takes a subclass of TrainingAlgorithm, and got {algorithm!r}"
            )
        if missing := sorted(getattr(algorithm, "__abstractmethods__", ())):
            raise TypeError(f"register_algorithm({name!r}): {algorithm.__name__} lacks {', '.join(missing)}")
        _check_settings(f"register_algorithm({name!r})", algorithm.settings)
        _add_algorithm(name, like, implementation=path_of(algorithm))
        return algorithm

    return decorate


def register_loss(name: str, *, like: str = "flow_grpo") -> Callable[[Function], Function]:
    """Decorator of a policy loss `(log_ratio, advantages, settings) -> loss` of one recorded step, each float32 [B].

    Args:
        name: its `loss_mode`.
        like: an algorithm that trains on recorded steps; `settings` are those of its `diffusion_loss`.
    """

    _check_name("register_loss", name)

    def decorate(loss: Function) -> Function:
        # A class in the reference's form is checked by register_diffusion_loss.
        if not hasattr(loss, "validate_inputs"):
            _check_function(f"register_loss({name!r})", loss)
        _add_algorithm(name, like, loss=path_of(loss))
        return loss

    return decorate


def register_advantage(name: str) -> Callable[[Function], Function]:
    """Decorator of a function `(rewards, groups, settings) -> advantages`; its name is an `algorithm.adv_estimator`.

    It gets the rewards of a step, float32 [B], the prompt that each belongs to, and the settings below `algorithm`, and
    returns float32 [B].
    """

    _check_name("register_advantage", name)

    def decorate(function: Function) -> Function:
        from verl_omni.workers.algorithms.estimators import ESTIMATORS

        _check_function(f"register_advantage({name!r})", function)
        ESTIMATORS.add(name, path_of(function))
        return function

    return decorate


def register_family(
    architecture: str,
    *,
    pipeline: str,
    pre_process: str | None = None,
    shapes: str | None = None,
    images: str | None = None,
) -> Callable[[Class], Class]:
    """Decorator of a model family's training adapter, a class with the members of `pipelines.registry.TrainingAdapter`.

    Args:
        architecture: `_class_name` in `model_index.json` of the models.
        pipeline: `module:Class` of the pipeline, which only the engine imports. The module also has
            `get_post_process_func`.
        pre_process: name of the factory in that module of the function that checks a request.
        shapes: module with the shapes of samples (`pipelines.sample_shapes.SampleShapes`), for `drl fit` and sequence
            parallelism.
        images: module about input images of prompts (`pipelines.input_images.InputImages`); None: prompts have none.
    """

    _check_name("register_family", architecture)
    if not _IMPORT_PATH.fullmatch(pipeline):
        raise ValueError(f"register_family({architecture!r}): pipeline {pipeline!r} must be written as module:Class")

    def decorate(adapter: Class) -> Class:
        from verl_omni.pipelines.description import Family
        from verl_omni.pipelines.registry import FAMILIES, MEMBERS

        if missing := [member for member in MEMBERS if not hasattr(adapter, member)]:
            raise TypeError(f"register_family({architecture!r}): {adapter.__name__} lacks {', '.join(missing)}")
        FAMILIES.add(architecture, Family(pipeline, path_of(adapter), pre_process, None, shapes, images))
        return adapter

    return decorate


def register_reward(name: str) -> Callable[[Function], Function]:
    """Decorator of a scorer; its name is a `reward.scorer`, or one of `reward.reward_functions`."""

    _check_name("register_reward", name)

    def decorate(function: Function) -> Function:
        from verl_omni.reward_loop.rewards import SCORERS

        _check_function(f"register_reward({name!r})", function)
        SCORERS.add(name, path_of(function))
        return function

    return decorate


def _check_name(decorator: str, name: Any) -> None:
    """Refuse a decorator without parentheses, which would register nothing."""
    if not isinstance(name, str):
        raise TypeError(f"{decorator} takes a name, and got {name!r}: write @{decorator}('my_name')")


def _check_settings(decorator: str, kind: Any) -> None:
    """Refuse a type of settings whose own fields would not be settings, or have their defaults in no file."""
    from dataclasses import fields
    from inspect import get_annotations

    from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE

    if get_annotations(kind) and "__dataclass_fields__" not in kind.__dict__:
        raise TypeError(f"{decorator}: {kind.__name__} has fields and is no dataclass: write @dataclass above it")
    if without := [entry.name for entry in fields(kind) if entry.default is FROM_FILE]:
        raise TypeError(
            f"{decorator}: {kind.__name__} has no defaults of {', '.join(without)}: write them in the class"
        )


def _check_function(decorator: str, thing: Any) -> None:
    if isinstance(thing, type) or not callable(thing):
        raise TypeError(f"{decorator} takes a function, and got {thing!r}")


def _add_algorithm(name: str, like: str, implementation: str | None = None, loss: str | None = None) -> None:
    from dataclasses import replace

    from verl_omni.workers.algorithms.registered import ALGORITHMS

    built_in = [algorithm for algorithm in ALGORITHMS if ALGORITHMS[algorithm].like is None]
    possible = [algorithm for algorithm in built_in if ALGORITHMS[algorithm].on_recorded_steps] if loss else built_in
    if like not in possible:
        raise ValueError(f"like={like!r}: write one of {', '.join(possible)}")
    base = ALGORITHMS[like]
    ALGORITHMS.add(name, replace(base, implementation=implementation or base.implementation, loss=loss, like=like))
