"""Patch: an idle vLLM-Omni engine looks for outputs a hundred times a second instead of a thousand.

Fault: the orchestrator (vllm_omni/engine/orchestrator.py, `_orchestration_loop`) and its client
(vllm_omni/entrypoints/async_omni_base.py) poll their queues every millisecond, also while a batch is generated. On a
CPU both take the interpreter lock and the core from the model each time.
Remove when: an output of a diffusion stage wakes the thread that waits for it.
"""

import asyncio
import types
from typing import Any

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})
SECONDS = 0.01


def apply() -> None:
    """Make both poll every `SECONDS`. Safe to repeat."""
    require("vllm-omni", TESTED, "engine_polling")
    from vllm_omni.engine import orchestrator
    from vllm_omni.entrypoints import async_omni_base

    async_omni_base._FINAL_OUTPUT_IDLE_SLEEP_S = SECONDS
    # The interval of the orchestrator is a literal, so its module gets an asyncio whose short sleeps are longer.
    patient = types.ModuleType(asyncio.__name__)
    patient.__dict__.update(asyncio.__dict__)
    patient.__dict__["sleep"] = _sleep
    orchestrator.asyncio = patient


async def _sleep(delay: float, result: Any = None) -> Any:
    """`asyncio.sleep`, at least `SECONDS` unless it only yields."""
    return await asyncio.sleep(max(delay, SECONDS) if delay > 0 else delay, result)
