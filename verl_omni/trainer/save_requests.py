"""`SaveRequests`: checkpoints that pods request before they stop (`verl_omni.utils.save_before_stop`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from verl_omni.utils.save_before_stop import NAMESPACE, PROGRESS, REQUEST, Progress


class SaveRequests:
    """Tells the pods' hooks how far the run is, and the run what they request, through Ray's key-value store."""

    def __init__(self) -> None:
        self._complete = self._saved = 0

    def observe(self, event: Mapping[str, Any]) -> None:
        """Follow the events of a `RunFolder`."""
        match event["event"]:
            case "start":
                self._complete = self._saved = event["resumed_from"] or 0
            case "step":
                self._complete = max(self._complete, event["step"])
            case "checkpoint":
                self._saved = event["step"]
            case _:
                return
        self._record()

    def requested(self) -> bool:
        """Whether a pod has requested a checkpoint that does not exist yet."""
        from ray.experimental.internal_kv import _internal_kv_exists, _internal_kv_initialized

        return bool(_internal_kv_initialized() and _internal_kv_exists(REQUEST, namespace=NAMESPACE))

    def _record(self) -> None:
        ray = sys.modules.get("ray")  # imported when it is started, which is after the first event
        if ray is None or not ray.is_initialized():
            return
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

        progress = Progress(self._complete, self._saved, ray.get_runtime_context().get_job_id())
        _internal_kv_put(PROGRESS, msgspec.json.encode(progress), overwrite=True, namespace=NAMESPACE)
        if self._saved >= self._complete:
            _internal_kv_del(REQUEST, namespace=NAMESPACE)
