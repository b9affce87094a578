"""`python -m suite check | test | test-cluster | test-all | times`: run a part of the suite, or write its durations."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import psutil

from e2e import turns

from . import long_tests, timings
from .preloaded import Preloaded
from .runner import Runner
from .stages import Target, lanes, only

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv" / "suite"
WAITING = ROOT / ".venv" / "long-tests-that-wait.json"
PAGE = ROOT / "docs" / "contribute" / "testing.md"
# Both, because a shell starts background jobs with SIGINT ignored, which the stages would inherit.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def machine() -> str:
    """The machine in general terms: cores, memory, accelerator."""
    memory = round(psutil.virtual_memory().total / 2**30)
    return f"{os.cpu_count()} cores, {memory} GiB of memory and {'an' if has_accelerator() else 'no'} accelerator"


def has_accelerator() -> bool:
    """Whether the machine has an NVIDIA or Ascend accelerator."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/davinci_manager"))


def run(target: Target, prefixes: Sequence[str], say: Callable[[str], None]) -> int:
    """Run the stages of a target, or those that the prefixes of names choose; the exit status."""
    files = sorted((ROOT / "tests" / "ml" / "engine").rglob("test_*.py"))
    chosen = lanes(target, [path.relative_to(ROOT) for path in files])
    if prefixes:
        chosen = only(chosen, prefixes)
    digests = long_tests.digests(ROOT)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    if prefixes:
        wait = {}
    elif target is Target.TEST:
        wait = long_tests.waiting(long_tests.recorded(), digests, long_tests.TURNS)
    elif "TESTS_END_BY" in os.environ:
        wait = long_tests.waiting(long_tests.recorded(committed=True), digests, long_tests.TURNS_OF_CI)
    else:
        wait = {}
    let_wait(wait, say)
    # The context of an accelerator does not survive a fork.
    runner = Runner(FOLDER, say, None if has_accelerator() else Preloaded())
    failed = runner.run(chosen)
    passed = timings.passed(FOLDER)
    turns.keep(timings.on_clusters(passed))
    lately = {name: record for name, record in timings.elsewhere(passed).items() if record.at >= begun}
    long_tests.keep(long_tests.updated(long_tests.recorded(), lately, timings.failed(FOLDER), digests))
    stages, tests = timings.read(FOLDER)
    names = {stage.name for lane in chosen for stage in lane}
    say("\n" + timings.table(machine(), [stage for stage in stages if stage.name in names], tests))
    for name in failed:  # last, because a long output is often cut at its beginning
        say(f"\n{name}:\n{runner.failure_summary(name)}")
    say(f"\nfailed: {', '.join(failed)}; logs: {FOLDER}" if failed else "\nevery stage passed")
    return 1 if failed else 0


def let_wait(files: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Let the processes of the suite skip these files (`long_tests.waiting`)."""
    WAITING.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    os.environ[long_tests.VARIABLE] = str(WAITING)
    if files:
        say(f"{len(files)} long files of tests wait for a later run (docs/contribute/testing.md)")


def write_times(say: Callable[[str], None]) -> int:
    """Write the durations of the last runs into the page, and which tests had their turn; the exit status."""
    stages, tests = timings.read(FOLDER)
    if not stages:
        say("nothing was measured yet: make test")
        return 1
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(timings.replaced(page, timings.table(machine(), stages, tests)), encoding="utf-8")
    turns.write(turns.newest(turns.known(), timings.on_clusters(timings.passed(FOLDER))), turns.COMMITTED)
    files = long_tests.digests(ROOT)
    turns.write(
        {name: record for name, record in long_tests.recorded(True).items() if name in files}, long_tests.COMMITTED
    )
    say("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in (PAGE, turns.COMMITTED, long_tests.COMMITTED)))
    return 0


def main() -> int:
    """Do what the arguments ask for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suite")
    parser.add_argument("target", choices=[*(target.value for target in Target), "times"])
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="stages whose names begin with this"
    )
    chosen = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)

    def stop(number: int, frame: FrameType | None) -> None:
        # Once: a second signal would leave processes that the first one is ending.
        for ignored in SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise KeyboardInterrupt

    os.chdir(ROOT)
    for number in SIGNALS:
        signal.signal(number, stop)
    if chosen.target == "times":
        return write_times(say)
    try:
        return run(Target(chosen.target), chosen.only, say)
    except KeyboardInterrupt:
        say("interrupted: every stage was ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
