"""Refused requests in a row: how long the pauses are, what ends them, and when answers with 500 are a refusal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from omni_operator.cluster.errors import (
    ClusterError,
    Forbidden,
    KindAbsent,
    NamespaceTerminating,
    NameTaken,
    QuotaExceeded,
    Refused,
    ServerError,
    ServerFailed,
)
from omni_operator.reconcile.refused_requests import SERVER_ERRORS, Refusals, ServerErrors, describe

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pauses(error: ClusterError, times: int) -> list[int]:
    made = Refusals()
    found = []
    for _ in range(times):
        made = made.add(error, 1, NOW)
        assert made.until is not None
        found.append(int((made.until - NOW).total_seconds()))
    return found


def test_pauses_double_up_to_a_limit_which_is_low_for_what_users_install_or_delete() -> None:
    assert pauses(Refused("no"), 8) == [5, 10, 20, 40, 80, 160, 300, 300]
    assert pauses(ServerFailed("no"), 3) == [5, 10, 20]
    assert pauses(NameTaken("no"), 4) == pauses(KindAbsent("no"), 4) == [5, 10, 15, 15]


def test_a_refusal_stands_during_its_pause_for_its_generation_only() -> None:
    made = Refusals().add(Refused("no"), 1, NOW)
    assert made.standing(1, NOW) is made.last
    assert made.standing(2, NOW) is None
    assert made.standing(1, NOW + timedelta(seconds=5)) is None
    assert Refusals().standing(0, NOW) is None
    assert made.add(Refused("no"), 2, NOW).until == made.until, "a changed spec begins with the shortest pause"


def test_answers_with_500_are_a_refusal_the_third_time_for_one_request_and_generation() -> None:
    found = []
    made = ServerErrors()
    for request, generation in (("a", 1), ("a", 1), ("a", 2), ("b", 2), ("b", 2), ("b", 2), ("b", 2), ("b", 3)):
        made = made.add(ServerError("no", None, request), generation)
        found.append(made.is_refusal)
    assert found == [False, False, False, False, False, True, True, False]
    assert SERVER_ERRORS == 3


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KindAbsent("x"), "KubeRayNotInstalled"),
        (NameTaken("x"), "NameTaken"),
        (QuotaExceeded("x"), "QuotaExceeded"),
        (NamespaceTerminating("x"), "NamespaceTerminating"),
        (Forbidden("x"), "Forbidden"),
        (ServerFailed("x"), "ServerFailed"),
        (Refused("x"), "ChildRefused"),
    ],
)
def test_each_error_has_a_reason_and_keeps_the_words_of_the_server(error: ClusterError, kind: str) -> None:
    made = describe(error)
    assert made.kind == kind
    assert made.text.endswith("x")
