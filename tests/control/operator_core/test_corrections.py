"""Corrections of a job's NetworkPolicy while another one changes or deletes it again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_operator.cluster.corrections import AT_ONCE, PAUSE_MOST, Corrections
from omni_operator.cluster.kinds import NETWORK_POLICIES, RAYJOBS, Kind

KEY = ("team-a", "red")
POLICY = NETWORK_POLICIES, KEY[0], "red"


def put_back(simulation: Any) -> None:
    """Another controller has its own values."""
    simulation.cluster.change(*POLICY, spec={"ingress": []})


def delete(simulation: Any) -> None:
    simulation.cluster.remove(*POLICY)


def restored(simulation: Any) -> bool:
    found = simulation.cluster.get(*POLICY)
    return bool(found and found["spec"]["ingress"])


@pytest.mark.parametrize("undo", [put_back, delete], ids=lambda undo: undo.__name__)
async def test_corrections_slow_down_while_another_one_undoes_each_of_them(simulation: Any, undo: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.counts()
    for _ in range(600):
        if restored(simulation):
            undo(simulation)
        await simulation.settle()
        await simulation.after(1)
    counts = simulation.cluster.counts()
    written = counts["patch", "networkpolicies"] + counts["create", "networkpolicies"]
    assert AT_ONCE < written < 25, "600 without a pause"
    assert simulation.condition("Ready").status == "True"
    await simulation.after(PAUSE_MOST.total_seconds() + 1)
    assert restored(simulation), "the last change is corrected too"


async def test_a_changed_spec_ends_the_pause(simulation: Any) -> None:
    await simulation.submit_running()
    for _ in range(200):
        if restored(simulation):
            put_back(simulation)
        await simulation.after(1)
    assert not restored(simulation)
    simulation.edit(activeDeadlineSeconds=100_000)
    await simulation.settle()
    assert restored(simulation)


async def test_no_attempt_starts_without_its_policy(simulation: Any) -> None:
    await simulation.submit_running()
    there: list[bool] = []

    def look(verb: str, kind: Kind, name: str) -> None:
        if (verb, kind) == ("create", RAYJOBS):
            there.append(restored(simulation))

    simulation.cluster.failures = look
    for _ in range(200):  # until the pauses have their full length
        if restored(simulation):
            delete(simulation)
        await simulation.after(1)
    simulation.cluster.remove(RAYJOBS, KEY[0], "red-a01")
    await simulation.after(10)
    assert (simulation.attempts(), there) == (["red-a02"], [True])


@given(st.lists(st.floats(min_value=0, max_value=2000), max_size=40))
def test_a_pause_is_never_longer_than_its_limit_and_ends(gaps: list[float]) -> None:
    now, row = datetime(2026, 1, 1, tzinfo=UTC), Corrections()
    for gap in gaps:
        now += timedelta(seconds=gap)
        row = row.add(now, 1)
        end = row.pause_end(now, 1)
        assert end is None or now < end <= now + PAUSE_MOST
        assert end is None or row.pause_end(end, 1) is None
        assert row.pause_end(now, 2) is None, "a changed spec ends it"
