"""Every setting of the trainer is read by its code, or its other values are rejected with a message.

A setting counts as read where a module of its section reads an attribute or a key of its name from an object of its
parent's name (`pipeline.height` for `...rollout.pipeline.height`) or from `config`.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

from verl_omni.settings_schema import layout
from verl_omni.settings_schema.declarations import SETTINGS

ROOT = Path(__file__).parents[4]
# Without the rooms that read settings of runs other than their own.
ROOMS = ("settings", "data", "generation", "replicas", "rewards", "run", "output", "metrics")
TRAINER = ("verl_omni/trainer/*.py", *(f"verl_omni/trainer/{room}/*.py" for room in ROOMS))
# Files of this repository, and of the installed verl, that read the settings of a section.
READERS: dict[str, tuple[str, ...]] = {
    "data.": (
        *TRAINER,
        "verl_omni/agent_loop/*.py",
        "verl_omni/workers/**/*.py",
        "verl:utils/dataset/rl_dataset.py",
        "verl:experimental/agent_loop/agent_loop.py",
    ),
    "actor_rollout_ref.model.": (
        "verl_omni/workers/**/*.py",
        "verl_omni/workers/config/diffusion/model.py",
        "verl_omni/agent_loop/*.py",
        *TRAINER,
        "verl:experimental/reward_loop/reward_loop.py",
    ),
    "actor_rollout_ref.actor.": ("verl_omni/workers/**/*.py", *TRAINER),
    "actor_rollout_ref.rollout.": (
        "verl_omni/workers/**/*.py",
        "verl_omni/agent_loop/*.py",
        "verl_omni/algos/sde_settings.py",
        "verl_omni/pipelines/**/*.py",
        *TRAINER,
        "verl_omni/platforms/**/*.py",
        "verl:workers/rollout/llm_server.py",
        "verl:workers/rollout/replica.py",
        "verl:checkpoint_engine/base.py",
        "verl:workers/rollout/vllm_rollout/vllm_async_server.py",
        "verl:experimental/agent_loop/agent_loop.py",
    ),
    "actor_rollout_ref.hybrid_engine": TRAINER,
    "actor_rollout_ref.nccl_timeout": ("verl_omni/workers/engine_workers.py",),
    "algorithm.": ("verl_omni/workers/**/*.py", *TRAINER),
    "reward.": (
        "verl_omni/reward_loop/**/*.py",
        "verl_omni/agent_loop/*.py",
        "verl:experimental/reward_loop/reward_loop.py",
        "verl:trainer/ppo/reward.py",
        *TRAINER,
        "verl_omni/workers/rollout/vllm_rollout/judge/*.py",
        "verl:workers/rollout/replica.py",
        "verl:workers/rollout/vllm_rollout/vllm_async_server.py",
    ),
    "trainer.": (*TRAINER, "verl_omni/workers/**/*.py"),
    "ray_kwargs.": ("verl_omni/trainer/startup.py",),
}
# They check settings or declare them; a setting that nothing else reads does nothing.
CHECKS = (
    "settings/supported_values.py",
    "settings/configuration.py",
    "settings/reward_settings.py",
    "config/diffusion/actor.py",
    "config/diffusion/rollout.py",
)
# What objects with a group of settings are called where they are read, other than the group.
ALSO_CALLED: dict[str, tuple[str, ...]] = {
    "actor_rollout_ref.actor.fsdp_config": ("fsdp",),
    "actor_rollout_ref.model": ("model_config",),
    "actor_rollout_ref.rollout": ("rollout_config",),
    "actor_rollout_ref.rollout.algo": ("extra",),
    "actor_rollout_ref.rollout.engine_kwargs.vllm_omni": ("engine", "engine_args"),
    "actor_rollout_ref.rollout.pipeline": ("params", "extra"),
    "actor_rollout_ref.rollout.val_kwargs": ("chosen",),
    "ray_kwargs.ray_init": ("options",),
    "reward.custom_reward_function": ("function", "reward_fn_config"),
    "reward.reward_manager": ("reward_manager_cfg",),
    "reward.reward_model": ("model",),
}
# Settings that no module reads by name, with the reason.
EXCEPTIONS = {
    "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.request_batch_max_wait_ms": "an argument of vLLM-Omni's engine"
}


def all_settings() -> list[str]:
    every = (layout.defaults(layout.algorithm_defaults(loss)) for loss in layout.algorithms())
    flat = {name: value for settings in every for name, value in layout.flat_settings(settings)}
    groups = {name for name, value in flat.items() if isinstance(value, dict) and value}
    return sorted(name for name in flat.keys() - groups if not name.endswith("._target_"))


def files(patterns: Sequence[str]) -> Iterator[Path]:
    verl = Path(str(distribution("verl").locate_file("verl")))
    for pattern in patterns:
        base, glob = (verl, pattern.removeprefix("verl:")) if pattern.startswith("verl:") else (ROOT, pattern)
        paths = [path for path in base.glob(glob) if not is_check(path)]
        assert paths, f"no file {pattern}"
        yield from paths


def is_check(path: Path) -> bool:
    return any(path.as_posix().endswith(check) for check in CHECKS)


def last_name(node: ast.expr) -> str | None:
    """`c` of `a.b.c` and of `a["c"]`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return None


@cache
def reads(path: Path) -> frozenset[tuple[str, str]]:
    """Pairs (object, name) that a module reads."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Load()):
                names.add((last_name(owner), name))
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                names.add((last_name(owner), name))
            case ast.Call(
                func=ast.Attribute(value=owner, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]
            ):
                names.add((last_name(owner), name))
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
                names.add((last_name(owner), name))
            case ast.Call(func=ast.Attribute(attr="select"), args=[_, ast.Constant(value=str(dotted)), *_]):
                names.add((dotted.split(".")[-2] if "." in dotted else "config", dotted.split(".")[-1]))
    return frozenset((str(owner), name) for owner, name in names)


def is_read(setting: str) -> bool:
    (section,) = (prefix for prefix in READERS if setting.startswith(prefix))
    parent, _, name = setting.rpartition(".")
    owners = {parent.rpartition(".")[2], "config", "settings", *ALSO_CALLED.get(parent, ())}
    return any((owner, name) in reads(path) for path in files(READERS[section]) for owner in owners)


@pytest.mark.parametrize("setting", all_settings())
def test_a_setting_is_read_or_its_other_values_are_refused(setting: str) -> None:
    assert is_read(setting) or (setting in SETTINGS and SETTINGS[setting].values) or setting in EXCEPTIONS


def test_every_exception_is_still_needed() -> None:
    assert [setting for setting in EXCEPTIONS if setting not in all_settings() or is_read(setting)] == []


def test_a_setting_that_nothing_reads_is_found() -> None:
    assert not is_read("trainer.no_such_setting")
    assert not is_read("actor_rollout_ref.rollout.val_kwargs.n"), "rollout.n is another setting"
    assert is_read("trainer.sample_prompts")
