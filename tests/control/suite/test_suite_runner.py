"""The runner of the suite: order, failures, durations, and the end of everything that it started."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from e2e.cluster import deadlines
from suite import timings
from suite.runner import Runner
from suite.stages import (
    FEWER_EXAMPLES,
    IMAGES,
    INSTRUCTIONS,
    LONG,
    NUMERIC,
    PROGRAMS,
    SLOW,
    Stage,
    Target,
    lanes,
    only,
    pytest_stage,
)

ROOT = Path(__file__).resolve().parents[3]
NUMERIC_STAGES = {f"numeric: {level}" for level in INSTRUCTIONS}
ENGINE = sorted(path.relative_to(ROOT) for path in (ROOT / "tests/ml/engine").rglob("test_*.py"))


def python(name: str, code: str, after: tuple[str, ...] = (), last: bool = False) -> Stage:
    return Stage(name, ("-c", code), after, last=last)


def appending(log: Path, word: str) -> str:
    return f"open({str(log)!r}, 'a').write('{word} ')"


def until(log: Path, word: str) -> str:
    """Code that waits until a word is in the log, which exists."""
    return f"import pathlib, time\nwhile {word!r} not in pathlib.Path({str(log)!r}).read_text(): time.sleep(0.01)\n"


MARKS = ("slow", "engine", "cluster", "bare", "gpu", "npu")


def runs(stage: Stage, path: str, marks: set[str]) -> bool:
    """Whether pytest chooses a test of this file with these marks in a stage."""
    arguments = stage.command[stage.command.index("-m", 1) + 1 :]
    roots = [argument for argument in arguments if argument.startswith(("tests", "e2e"))]
    ignored = [argument.partition("=")[2] for argument in arguments if argument.startswith("--ignore=")]
    below = [any(path.startswith(root) for root in chosen) for chosen in (roots, ignored)]
    return below == [True, False] and bool(eval(arguments[0], {name: name in marks for name in MARKS}))


def files(*roots: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for root in roots for path in sorted((ROOT / root).rglob("test_*.py"))]


@pytest.mark.parametrize("target", Target)
def test_every_awaited_stage_is_in_the_run_and_names_are_unique(target: Target) -> None:
    stages = [stage for lane in lanes(target, ENGINE) for stage in lane]
    names = [stage.name for stage in stages]
    assert len({stage.file for stage in stages}) == len(names) == len(set(names))
    assert {name for stage in stages for name in stage.after} <= set(names)


def test_a_part_of_a_run_brings_the_builds_that_it_needs() -> None:
    chosen = only(lanes(Target.ALL, ENGINE), ["fast", "whole"])
    names = {stage.name for lane in chosen for stage in lane}
    assert names == {"fast: commands", "fast: control", "fast: ml", "fast: trainer", "whole clusters", PROGRAMS, IMAGES}


def test_every_run_but_the_one_before_a_commit_draws_all_examples_of_property_tests() -> None:
    for target in Target:
        stages = [stage for lane in lanes(target, ENGINE) for stage in lane if stage.name.startswith("fast")]
        fewer = {FEWER_EXAMPLES in stage.command for stage in stages}
        assert fewer == ({True} if target is Target.CHECK else {False} if stages else set()), target


def test_numeric_tests_run_once_with_the_instructions_of_each_kind_of_processor(tmp_path: Path) -> None:
    stages = [stage for lane in lanes(Target.ALL, ENGINE) for stage in lane if stage.name in NUMERIC_STAGES]
    assert [dict(stage.environment)["ONEDNN_MAX_CPU_ISA"] for stage in stages] == ["AVX2", "SSE41"]
    assert all((ROOT / path).is_file() and runs(stage, path, {"slow"}) for stage in stages for path in NUMERIC)
    log = tmp_path / "log"
    (stage,) = [stage for stage in stages if stage.name == "numeric: AVX2"]
    program = f"import os, pathlib; pathlib.Path({str(log)!r}).write_text(os.environ['ONEDNN_MAX_CPU_ISA'])"
    assert Runner(tmp_path / "run", lambda _: None).run([(replace(stage, command=("-c", program)),)]) == []
    assert log.read_text() == "AVX2"


def test_all_is_the_other_two_together_and_the_numeric_stages() -> None:
    named = {target: {stage.name for lane in lanes(target, ENGINE) for stage in lane} for target in Target}
    assert named[Target.ALL] == named[Target.TEST] | named[Target.CLUSTER] | NUMERIC_STAGES
    assert named[Target.CHECK] < named[Target.TEST]
    assert IMAGES not in named[Target.TEST], "`make test` needs no root"


FOLDERS = (
    "tests/control",
    "tests/control/plan",
    "tests/architecture",
    "tests/contract",
    "tests/documents",
    "tests/ml/trainer",
    "tests/ml/workers",
    "tests/ml/models",
    "e2e/suites",
)
MARKED = (set(), {"slow"}, {"cluster"}, {"bare"}, {"slow", "cluster"}, {"cluster", "bare"})
# Tests in `e2e` without such a mark are refused by the next test.
PLACES = [(path, marks) for path in FOLDERS for marks in MARKED if path != "e2e/suites" or marks & {"cluster", "bare"}]


@pytest.mark.parametrize(("folder", "marks"), PLACES)
def test_a_test_is_in_one_stage(folder: str, marks: set[str]) -> None:
    stages = [stage for lane in lanes(Target.ALL, ENGINE) for stage in lane if stage.is_pytest]
    assert len([stage for stage in stages if runs(stage, f"{folder}/test_a.py", marks)]) == 1


def test_marks_are_where_a_stage_looks_for_them() -> None:
    """Tests of `e2e` are all on a cluster, and tests on the engine all in the folder of which every file is a stage."""
    for path in files("e2e"):
        assert re.search(r"pytest\.mark\.(cluster|bare)", (ROOT / path).read_text(encoding="utf-8")), path
    for path in files("tests"):
        marked = re.search(r"^pytestmark = .*mark\.engine", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert bool(marked) == path.startswith("tests/ml/engine/"), path


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: path.stem)
def test_a_file_on_the_engine_is_in_one_stage(path: Path) -> None:
    stages = [stage for lane in lanes(Target.TEST, ENGINE) for stage in lane if stage.is_pytest]
    (stage,) = [stage for stage in stages if runs(stage, path.as_posix(), {"engine"})]
    assert stage.name.startswith("engine: ")


@pytest.mark.parametrize("path", [path for part in SLOW.values() for path in part if path.endswith(".py")])
def test_a_slow_file_that_its_stage_names_is_in_no_other(path: str) -> None:
    stages = [stage for lane in lanes(Target.TEST, ENGINE) for stage in lane if stage.is_pytest]
    (stage,) = [stage for stage in stages if runs(stage, path, {"slow"})]
    assert (ROOT / path).is_file() and path in stage.command


def test_the_long_files_on_the_engine_exist_and_come_first() -> None:
    lane, *_ = lanes(Target.TEST, ENGINE)
    assert [stage.name for stage in lane[: len(LONG)]] == [f"engine: {name}" for name in LONG]


def test_lanes_run_side_by_side_and_a_stage_waits_for_what_it_needs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = list[str]()
    log.write_text("")
    run = [
        (python("first", until(log, "b") + appending(log, "a")), python("end", appending(log, "d"), last=True)),
        (python("second", appending(log, "b")), python("third", appending(log, "c"), after=("first",))),
    ]
    assert Runner(tmp_path / "run", lines.append).run(run) == []
    assert log.read_text().split() == ["b", "a", "c", "d"]
    reported = [line.split("passed in")[1].split(": ")[1].strip() for line in lines]
    # "first" and "second" end at nearly the same time, so either may be reported first.
    assert sorted(reported[:2]) == ["first", "second"] and reported[2:] == ["third", "end"]


def test_a_failure_is_printed_whole_and_what_needs_it_does_not_run(tmp_path: Path) -> None:
    lines: list[str] = []
    run = [
        (python("bad", "print('the reason'); raise SystemExit(3)"), python("next", "print('goes on')")),
        (python("needs it", "print('never')", after=("bad",)),),
    ]
    assert Runner(tmp_path, lines.append).run(run) == ["bad", "needs it"]
    text = "\n".join(lines)
    assert "FAILED" in text and "the reason" in text and "goes on" not in text
    assert "NOT RUN: needs it, because this failed: bad" in text
    stages, _ = timings.read(tmp_path)
    assert {stage.name: stage.succeeded for stage in stages} == {"bad": False, "next": True}


@pytest.mark.slow
def test_a_failed_stage_is_summed_up_by_its_failed_tests_and_their_errors(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "def test_bad() -> None:\n    raise ValueError('the reason ' + 1000 * 'x')\n\ndef test_good(): pass\n"
    )
    arguments = ("-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file))
    runner = Runner(tmp_path / "run", lambda text: None)
    run = [(pytest_stage("tests", "not gpu", *arguments), python("bad", "print('a'); raise SystemExit('its end')"))]
    assert runner.run(run) == ["tests", "bad"]
    error, failed = runner.failure_summary("tests").splitlines()
    assert error.startswith("E ") and "ValueError: the reason x" in error and len(error) < 400
    assert failed.startswith("FAILED ") and "test_it.py::test_bad" in failed
    assert runner.failure_summary("bad") == "its end"


@pytest.mark.slow
@pytest.mark.parametrize(("test", "failed"), [("pass", []), ("__import__('os')._exit(0)", ["tests"])])
def test_pytest_without_its_closing_line_has_failed(tmp_path: Path, test: str, failed: list[str]) -> None:
    """A test that replaces or ends the process of pytest leaves exit code 0 and runs nothing more."""
    file = tmp_path / "test_it.py"
    file.write_text(f"def test_it() -> None:\n    {test}\n")
    stage = Stage("tests", ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)))
    assert Runner(tmp_path / "run", lambda text: None).run([(stage,)]) == failed


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell has started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_run_ends_the_processes_of_its_stages(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess, sys, time\n"
        "started = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(child)!r}, 'w').write(str(started.pid))\n"
        "time.sleep(600)"
    )

    def interrupt() -> None:
        deadlines.wait_until("the stage", deadlines.COMMAND, lambda: child.exists() and child.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        Runner(tmp_path / "run", lambda text: None).run([(python("long", code),)])
    started = int(child.read_text())
    deadlines.wait_until("the child to end", deadlines.PROCESS_END, lambda: not lives(started))


@pytest.mark.slow
@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_run_lets_tests_remove_what_they_made(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    file = tmp_path / "test_long.py"
    file.write_text(
        "import pathlib, time, pytest\n"
        "@pytest.fixture\n"
        "def made():\n"
        f"    path = pathlib.Path({str(marker)!r})\n"
        "    path.write_text('here')\n"
        "    yield\n"
        "    path.rename(path.with_name('removed'))\n"
        "def test_long(made): time.sleep(600)\n"
    )

    def interrupt() -> None:
        deadlines.wait_until("the test", deadlines.COMMAND, marker.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    stage = Stage("long", ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(file)))
    with pytest.raises(KeyboardInterrupt):
        Runner(tmp_path / "run", lambda text: None).run([(stage,)])
    assert not marker.exists() and (tmp_path / "removed").exists()


def test_programs_of_a_control_plane_come_before_its_tests() -> None:
    (stage,) = [stage for lane in lanes(Target.TEST, ENGINE) for stage in lane if stage.name == "control plane"]
    assert stage.after == (PROGRAMS,)
