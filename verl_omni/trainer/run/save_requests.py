"""`SaveRequests`: checkpoints that pods request before they stop (`verl_omni.utils.save_before_stop`)."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from verl_omni.utils.save_before_stop import NAMESPACE, POLL_SECONDS, PROGRESS, REQUEST, Progress


class SaveRequests:
    """Tells the pods' hooks how far the run is, and the run what they request, through Ray's key-value store."""

    def __init__(self) -> None:
        self._complete = self._saved = 0
        self._requested = False

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

        is_requested = _internal_kv_initialized() and _internal_kv_exists(REQUEST, namespace=NAMESPACE)
        self._requested = self._requested or is_requested
        return bool(is_requested)

    def wait_for_end(self, stop_requested: Callable[[], bool], report: Callable[[str], None]) -> None:
        """After a save that a pod requested, wait until the pods end this program: further steps would be lost."""
        if not self._requested:
            return
        report("a pod of this run is ending: waiting for the end")
        while not stop_requested():
            time.sleep(POLL_SECONDS)

    def _record(self) -> None:
        ray = sys.modules.get("ray")  # imported when it is started, which is after the first event
        if ray is None or not ray.is_initialized():
            return
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

        progress = Progress(self._complete, self._saved, ray.get_runtime_context().get_job_id())
        _internal_kv_put(PROGRESS, msgspec.json.encode(progress), overwrite=True, namespace=NAMESPACE)
        if self._saved >= self._complete:
            _internal_kv_del(REQUEST, namespace=NAMESPACE)
