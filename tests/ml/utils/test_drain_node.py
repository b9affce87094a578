"""The hook of a rollout pod that is deleted, with Ray's head in memory."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from verl_omni.utils.drain_node import drain

NODE = "ab" * 28


@dataclass
class Head:
    """Ray's head; the node ends `ends` seconds after it is drained, or never."""

    ends: float | None
    accepts: bool = True
    now: float = 1000.0
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def drain_node(self, *arguments: Any) -> tuple[bool, str]:
        self.asked.append(arguments)
        return self.accepts, "" if self.accepts else "it is the head"

    def get_all_node_info(self) -> dict[Any, Any]:
        gone = self.ends is not None and self.now >= 1000 + self.ends
        state = SimpleNamespace(node_manager_hostname="pod", state=1 if gone else 0)
        return {bytes.fromhex(NODE): state}

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("ends", "waited", "gone"), [(0, 0, True), (7, 7, True), (None, 60, False), (100, 60, False)])
def test_a_hook_waits_for_its_node_at_most_as_long_as_it_may(ends: float | None, waited: float, gone: bool) -> None:
    head = Head(ends)
    assert drain(head, NODE, 60, clock=lambda: head.now, pause=head.pause) is gone
    assert head.now - 1000 == waited
    ((node, reason, text, deadline),) = head.asked
    assert (node, reason, text, deadline) == (NODE, 2, "its pod is being deleted", 1_060_000), (
        "preempted, and until when"
    )


def test_a_hook_says_why_a_node_is_not_drained() -> None:
    with pytest.raises(RuntimeError, match="it is the head"):
        drain(Head(None, accepts=False), NODE, 60)
