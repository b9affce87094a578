"""Platform-specific settings of a rollout server."""

from __future__ import annotations

import sys

import pytest

from verl_omni.platforms.server_profile import CPU_PROFILE, ServerProfile


@pytest.mark.parametrize(
    ("profile", "executor", "changed"),
    [
        (CPU_PROFILE, "uni", True),
        (CPU_PROFILE, "mp", False),
        (CPU_PROFILE, None, False),
        (ServerProfile(), "uni", False),
    ],
)
def test_only_a_cpu_server_with_its_worker_as_a_thread_switches_threads_faster(
    profile: ServerProfile, executor: str | None, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    profile.tune_process(executor=executor)
    assert intervals == ([profile.uni_switch_seconds] if changed else [])


def test_only_the_cpu_replaces_the_scheduler_of_language_models() -> None:
    assert ServerProfile().language_model_scheduler is None
    assert CPU_PROFILE.language_model_scheduler
