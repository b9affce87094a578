"""Relay of reports: a replica that does not lead passes them on to the one that does.

It has checked the token by then, so the leader, which checks it too, sees no forged tokens from its address.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from omni_operator.api.names import REPORTS_PATH

RELAYED_HEADER = "Diffusionrl-Relayed"
RELAY_SECONDS = 5.0  # less than a trainer waits for an answer
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RelayedAnswer:
    """The leader's answer; `retry_after` is its header."""

    code: int
    body: bytes
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class ReportRelay:
    """Passes reports on.

    Attributes:
        leads: whether this replica leads, so that it takes reports itself.
        leader_url: report endpoint of the leader; None while there is none that is known.
    """

    session: aiohttp.ClientSession
    leads: Callable[[], bool]
    leader_url: Callable[[], str | None]

    async def send(self, token: str, body: bytes) -> RelayedAnswer | None:
        """Pass a report on. Returns None if no leader answers."""
        url = self.leader_url()
        if url is None:
            return None
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", RELAYED_HEADER: "1"}
        timeout = aiohttp.ClientTimeout(total=RELAY_SECONDS)
        try:
            async with self.session.post(url + REPORTS_PATH, data=body, headers=headers, timeout=timeout) as answer:
                return RelayedAnswer(answer.status, await answer.read(), answer.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("a report was not passed on to the leader at %s: %s: %s", url, type(error).__name__, error)
            return None
