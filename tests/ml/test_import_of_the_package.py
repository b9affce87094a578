"""`import verl_omni` registers its names with verl, and loads nothing: each check runs in a new process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_omni.utils import import_hooks

ROLLOUT = "from verl.workers.rollout.base import _ROLLOUT_REGISTRY as senders"
REPLICAS = "from verl.workers.rollout.replica import RolloutReplicaRegistry as replicas"
LOOPS = "from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as loops"
SENDER = "verl_omni.workers.rollout.vllm_rollout.training_worker.server_adapter.ServerAdapter"
LOOP = "verl_omni.agent_loop.single_turn_agent_loop.DiffusionSingleTurnAgentLoop"


def fresh(*lines: str, **environment: str) -> str:
    """Standard output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_importing_the_package_loads_neither_torch_nor_verl_nor_an_engine() -> None:
    loaded = fresh("import verl_omni, sys, json", "print(json.dumps(sorted(sys.modules)))")
    heavy = {"torch", "verl", "vllm", "vllm_omni", "ray", "numpy", "transformers", "diffusers", "omegaconf", "pydantic"}
    assert heavy & set(json.loads(loaded)) == set()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("first", "plugins"),
    [
        ([ROLLOUT, REPLICAS, LOOPS, "import verl_omni"], "none"),  # after verl, which loads no entry points
        ([], "auto"),  # not at all: verl's entry points import it
    ],
)
def test_verl_finds_the_names_whichever_package_is_imported_first(first: list[str], plugins: str) -> None:
    output = fresh(
        *first,
        ROLLOUT,
        REPLICAS,
        LOOPS,
        "print(senders['vllm_omni', 'async'], 'vllm_omni' in replicas._registry, loops['diffusion_single_turn_agent'])",
        VERL_USE_EXTERNAL_PLUGINS=plugins,
    )
    assert output.splitlines()[-1] == f"{SENDER} True {{'_target_': '{LOOP}'}}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_verl_loads_the_classes_of_the_names_after_the_package() -> None:
    output = fresh(
        "import verl_omni",
        "from verl.workers.rollout.replica import get_rollout_replica_class",
        "from verl.workers.rollout.base import get_rollout_class",
        "print(get_rollout_replica_class('vllm_omni').__name__, get_rollout_class('vllm_omni', 'async').__module__)",
        "from hydra.utils import get_class",
        f"print(get_class('{LOOP}').__name__)",
        VERL_USE_EXTERNAL_PLUGINS="none",
    )
    *_, classes, loop = output.splitlines()
    assert classes == f"vLLMOmniReplica {SENDER.rpartition('.')[0]}"
    assert loop == "DiffusionSingleTurnAgentLoop"


def test_an_error_of_a_callback_fails_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(import_hooks._FINDER, "callbacks", {})
    (tmp_path / "hooked_badly.py").write_text("")
    import_hooks.after_import("hooked_badly", lambda module: module.missing)
    with pytest.raises(AttributeError, match="missing"):
        __import__("hooked_badly")
    assert "hooked_badly" not in sys.modules
