"""Settings that name what is registered: the model family, and the agent loop. Checked before a model is looked for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.pipelines.registry import FAMILIES, missing_family
from verl_omni.trainer.settings.extension_settings import EXTERNAL_LIB
from verl_omni.verl_names import AGENT_LOOP

PATH = "actor_rollout_ref.model.path"
ARCHITECTURE = "actor_rollout_ref.model.architecture"
DEFAULT_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"
LOOPS_FILE = "actor_rollout_ref.rollout.agent.agent_loop_config_path"


def find_problems(config: DictConfig) -> Iterator[str]:
    """A line for each name that is given and not registered. Modules of the user's have been imported."""
    model = config.actor_rollout_ref.model
    agent = config.actor_rollout_ref.rollout.agent
    names = {PATH: model.path, ARCHITECTURE: model.architecture, DEFAULT_LOOP: agent.default_agent_loop}
    yield from problems_of({**names, LOOPS_FILE: agent.agent_loop_config_path})


def problems_of(values: Mapping[str, Any]) -> Iterator[str]:
    """The same of values by the names of their settings; one that is not there has its default."""
    path, architecture, loop = (
        None if values.get(name) is None else str(values[name]) for name in (PATH, ARCHITECTURE, DEFAULT_LOOP)
    )
    missing = None if path is None or Path(path).exists() else missing_family(path)
    if architecture is not None or missing:
        advice = f"write one of {', '.join(sorted(FAMILIES))}, or register your own (docs/guides/own-family.md)"
        if architecture is not None and architecture not in FAMILIES:
            yield f"{ARCHITECTURE}: {architecture} is not a supported model family; {advice}"
        elif missing and not FAMILIES.registered:  # said before it is downloaded
            advice = advice.replace("write one", "write a model of one", 1)
            yield f"{PATH}: the model family {missing} is not supported; {advice}"
    if loop not in (None, AGENT_LOOP) and values.get(LOOPS_FILE) is None and loop not in _loops():
        yield (
            f"{DEFAULT_LOOP}: {loop} is not a supported agent loop; write {AGENT_LOOP}, or register a loop of your own "
            f"in {LOOPS_FILE} or in a module of {EXTERNAL_LIB}"
        )


def _loops() -> frozenset[str]:
    # Only for names of users: it takes seconds.
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    return frozenset(_agent_loop_registry)
