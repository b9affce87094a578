"""The API server's time, from the dates of its answers."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from control.cluster.local_server import RotatingCredentials, serving
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.errors import Refused, Unavailable
from omni_operator.cluster.kinds import RAYJOBS
from omni_operator.cluster.server_clock import SERVERS_APART, ServerClock

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = timedelta(minutes=10)


class Machine:
    """A machine with a wall clock that differs from the API server's, and a clock that cannot be set."""

    def __init__(self, skew: timedelta = MINUTES) -> None:
        self.seconds = 100.0
        self.skew = skew
        self.clock = ServerClock(lambda: self.server + self.skew, lambda: self.seconds)

    @property
    def server(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def ask(self, before: float = 0.0, after: float = 0.0, ahead: timedelta = timedelta()) -> None:
        """An answer: so many seconds to the server, and back; of a server whose clock is ahead."""
        sent = self.seconds
        self.seconds += before
        date = format_datetime((self.server + ahead).replace(microsecond=0), usegmt=True)
        self.seconds += after
        self.clock.observe(date, sent)

    @property
    def error(self) -> timedelta:
        return self.clock() - self.server


@pytest.mark.parametrize("skew", [-MINUTES, timedelta(), MINUTES])
def test_one_answer_says_the_time_to_a_second(skew: timedelta) -> None:
    machine = Machine(skew)
    assert machine.error == skew
    machine.seconds += 0.7
    machine.ask()
    assert -timedelta(seconds=1) <= machine.error <= timedelta()
    machine.seconds += 3600
    assert -timedelta(seconds=1) <= machine.error <= timedelta()


@given(st.lists(st.tuples(*[st.floats(0, 40)] * 3), min_size=1, max_size=20))
def test_slow_answers_make_it_no_worse_and_it_never_goes_back(answers: list[tuple[float, float, float]]) -> None:
    machine = Machine()
    machine.ask()
    last = machine.clock()
    for pause, before, after in answers:
        machine.seconds += pause
        machine.ask(before, after)
        assert abs(machine.error) <= timedelta(seconds=1.001)
        assert machine.clock() >= last
        last = machine.clock()


def test_it_follows_a_clock_that_is_set_and_not_two_servers_that_differ() -> None:
    machine = Machine()
    machine.ask()
    for ahead in (timedelta(), timedelta(seconds=20), timedelta(), timedelta(seconds=20)):
        before = machine.clock()
        machine.ask(ahead=ahead)
        assert machine.clock() >= before
    for ahead in (timedelta(hours=1), -timedelta(hours=1)):
        machine.ask(ahead=ahead)
        assert abs(machine.error - ahead) <= timedelta(seconds=1)
    assert timedelta(hours=1) > SERVERS_APART


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 01 Jan 2026 99:00:00 GMT", "1"])
def test_an_answer_without_a_date_says_nothing(date: str | None) -> None:
    machine = Machine()
    machine.clock.observe(date, machine.seconds)
    assert machine.error == MINUTES


async def test_answers_of_the_api_server_set_the_clock_of_the_client_and_pages_of_a_proxy_do_not() -> None:
    server = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
    pages = ["<html>bad gateway</html>", '{"kind": "Status"}']

    async def handle(request: web.Request) -> web.Response:
        date = format_datetime(server, usegmt=True)
        return web.Response(text=pages.pop(0), status=422, headers={"Date": date})

    async with serving(handle) as port:
        async with ApiServer(RotatingCredentials(port, "t"), lambda *_: None, version="1") as cluster:
            with pytest.raises((Refused, Unavailable)):
                await cluster.read(RAYJOBS, "ns", "red")
            assert abs(cluster.clock() - datetime.now(UTC)) < timedelta(minutes=1)
            with pytest.raises(Refused):
                await cluster.read(RAYJOBS, "ns", "red")
            assert timedelta() <= cluster.clock() - server < timedelta(minutes=1)
