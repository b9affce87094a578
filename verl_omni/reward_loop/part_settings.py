"""PURE: settings of one entry of `reward.reward_functions`, besides the scorer's own."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from verl_omni.reward_loop.setting_types import COMBINED, EVALUATION
from verl_omni.settings_schema.declarations import RAY_RESOURCES

TRAINER = "trainer"  # value of a scorer's `device`: the same device as the trained model
USES = ("training", EVALUATION)


@dataclass(frozen=True, slots=True)
class ScorerPool:
    """Processes that run one scorer alone.

    Attributes:
        nnodes: number of nodes, or without `node_resource` of parts of one.
        n_gpus_per_node: processes on each, each with an accelerator; 0: one without.
        node_resource: custom Ray resource of the nodes; None: any node.
        ray_resource: Ray resource of the accelerators; None: the trainer's.
        python: path of the processes' interpreter; None: the node's.
    """

    nnodes: int = 1
    n_gpus_per_node: int = 0
    node_resource: str | None = None
    ray_resource: str | None = None
    python: str | None = None

    @property
    def processes_per_node(self) -> int:
        """Number of processes on each node."""
        return self.n_gpus_per_node or 1

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.nnodes * self.processes_per_node

    @property
    def accelerators(self) -> int:
        """Number of accelerators."""
        return self.nnodes * self.n_gpus_per_node


def pool_of(given: Mapping[str, Any]) -> ScorerPool | None:
    """The pool of a part with valid settings; None if the common reward workers run its scorer."""
    pool = given.get("pool")
    return None if pool is None else ScorerPool(**pool)


def pools_of(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, ScorerPool]:
    """The pools of valid parts, by key."""
    return {key: pool for key, part in parts.items() if (pool := pool_of(part)) is not None}


def part_problems(key: str, given: Any) -> Iterator[str]:
    """Messages about invalid settings of the part `key`."""
    where = f"reward.reward_functions.{key}"
    if not isinstance(given, Mapping):
        shown = "null" if given is None else given
        yield f"{where}: must be a group of settings, such as {{name: jpeg, weight: 0.5}}, not {shown}"
        return
    if key == COMBINED:
        yield f"{where}: the reward of all scorers has this name; choose another one"
    weight = given.get("weight", 1.0)
    required = given.get("required", True)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        yield f"{where}.weight: must be a finite number, not {weight}"
    if not isinstance(required, bool):
        yield f"{where}.required: must be true or false, not {required}"
    if given.get("use", USES[0]) not in USES:
        yield f"{where}.use: {given['use']!r} is not one of {', '.join(USES)}"
    if only_evaluates(given):
        for name in ("weight", "required"):
            if name in given:
                yield f"{where}.{name}: is not read with use={EVALUATION}, whose scores are in no reward; remove it"
    if given.get("pool") is not None:
        yield from _pool_problems(f"{where}.pool", given["pool"])
        if given.get("device") is not None:
            yield f"{where}.device: follows from pool.n_gpus_per_node; remove it"


def _pool_problems(where: str, given: Any) -> Iterator[str]:
    known = [field.name for field in fields(ScorerPool)]
    if not isinstance(given, Mapping):
        yield f"{where}: must be a group of settings, such as {{n_gpus_per_node: 1}}, not {given}"
        return
    yield from (
        f"{where}.{name}: unknown setting; a pool has {', '.join(known)}" for name in given if name not in known
    )
    for name, least in (("nnodes", 1), ("n_gpus_per_node", 0)):
        number = given.get(name, least)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            yield f"{where}.{name}: must be a whole number of at least {least}, not {number}"
    for name in ("node_resource", "python"):
        if not isinstance(given.get(name), (str, type(None))) or given.get(name) == "":
            yield f"{where}.{name}: must be a text, or null, not {given[name]!r}"
    if problem := ray_resource_problem(given.get("ray_resource")):
        yield f"{where}.ray_resource: {problem}"


def ray_resource_problem(resource: object) -> str | None:
    """Message about an invalid Ray resource of a pool's accelerators; None if it is valid."""
    if resource in (None, *RAY_RESOURCES):
        return None
    return f"must be {', '.join(RAY_RESOURCES)}, or null for the trainer's: {resource}"


def only_evaluates(given: Mapping[str, Any]) -> bool:
    """Whether a part scores the samples of evaluations only."""
    return given.get("use") == EVALUATION


def held_out_scorers(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The keys of parts that score the samples of evaluations only."""
    return [key for key, part in parts.items() if only_evaluates(part)]


def weight_problem(parts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why the scores cannot be combined with the parts' weights."""
    total = sum(part.get("weight", 1.0) for part in parts.values() if not only_evaluates(part))
    return None if total > 0 else f"reward.reward_functions: the weights must add up to more than 0, not {total:g}"
