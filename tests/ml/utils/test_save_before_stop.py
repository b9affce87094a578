"""The hook of a pod that a queue deletes, with Ray's key-value store in memory."""

from dataclasses import dataclass, field

import pytest

from verl_omni.utils import save_before_stop
from verl_omni.utils.save_before_stop import Progress, save

BEFORE = Progress(complete=5, saved=4, job="01")


@dataclass
class Run:
    """A training whose step 6 ends after 7 seconds; it then saves if that is requested."""

    before: Progress | None = BEFORE
    saves: bool = True
    dies_after: float = float("inf")
    now: float = 0.0
    requests: list[float] = field(default_factory=list)

    def progress(self) -> Progress | None:
        if self.before is None or self.now < 7:
            return self.before
        return Progress(complete=6, saved=6 if self.requests and self.saves else 4, job="01")

    def request(self) -> None:
        self.requests.append(self.now)

    def runs(self, job: str) -> bool:
        return job == "01" and self.now < self.dies_after

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("run", "saved", "waited"),
    [
        (Run(), True, 7),
        (Run(saves=False), False, 60),
        (Run(dies_after=3), False, 3),
        (Run(dies_after=7), True, 7),
    ],
    ids=["a step", "no longer than it may", "not for a program that has died", "and that had saved"],
)
def test_a_hook_waits_for_a_checkpoint_of_what_was_complete(run: Run, saved: bool, waited: float) -> None:
    assert save(run, 60, clock=lambda: run.now, pause=run.pause) is saved
    assert (run.requests, run.now) == ([0.0], waited)


@pytest.mark.parametrize("before", [None, Progress(0, 0, "01"), Progress(5, 5, "01")])
def test_a_hook_waits_for_nothing_where_nothing_would_be_lost(before: Progress | None) -> None:
    run = Run(before)
    assert save(run, 60, clock=lambda: run.now, pause=run.pause)
    assert (run.requests, run.now) == ([], 0.0)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.1.2.3", "10.1.2.3:6379"), ("::ffff:10.1.2.3", "10.1.2.3:6379"), ("fd00::1", "[fd00::1]:6379")],
)
def test_the_address_of_a_connection_is_one_that_ray_takes(address: str, expected: str) -> None:
    assert save_before_stop._with_port(address) == expected
