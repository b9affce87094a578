"""Stages of the test suite and the order they run in. PURE.

Each stage is one process. Stages of a lane run one after the other; lanes run side by side, because one stage seldom
keeps two cores busy. A third lane of tests was tried and is no shorter: each stage takes 1.3 to 1.7 times as long. A
lane of tests that has ended, or whose next stage cannot start yet, takes over stages from the end of another, so that
on any machine both end at about the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

ELSEWHERE = "not engine and not gpu and not npu and not cluster and not bare"
STATIC = "static checks"
PROGRAMS = "build: control plane"
IMAGES = "build: nodes and images"
# Property tests that name no number of examples draw fewer of them (conftest.py); the other targets draw all.
FEWER_EXAMPLES = "--hypothesis-profile=before-a-commit"
LEFT_OVER = 19  # nice value of the images' build, which uses what the tests leave
# The engine's files that take more than a minute. They start first: one that starts last is awaited alone.
LONG = ("algorithms", "example_jobs", "whole_job", "pools", "pool_nodes", "judge_dies", "faults", "own_family")
_WORKERS = "tests/ml/workers"
_TRAINER = "tests/ml/trainer"
# Stages of the slow tests, the longest last: files and folders, a folder without what other stages have of it.
SLOW = {
    "workers": (_WORKERS,),
    "ranks": tuple(
        f"{_WORKERS}/{name}.py"
        for name in ("actor/test_ranks", "algorithms/test_ranks_of_algorithms", "actor/test_sequence_parallel")
    ),
    "estimates": tuple(
        f"{_TRAINER}/memory_estimate/test_{name}_estimate.py"
        for name in ("memory", "pool", "pairs_and_evaluations", "engine")
    ),
    "trainer": (_TRAINER,),
    "others": ("tests",),
}
# Tests whose numbers depend on the instruction set that oneDNN chooses. The usual stages use the newest one of the CPU;
# `make test-all` also runs them with AVX2, as on CPUs without AVX-512, and with SSE4.1, the oldest.
NUMERIC = tuple(
    f"{_WORKERS}/{name}.py"
    for name in ("algorithms/test_old_log_probs", "actor/test_actor", "algorithms/test_objectives")
)
INSTRUCTIONS = ("AVX2", "SSE41")


class Target(Enum):
    """The tests that a run covers."""

    CHECK = "check"
    TEST = "test"
    CLUSTER = "test-cluster"
    ALL = "test-all"


@dataclass(frozen=True, slots=True)
class Stage:
    """One process of the suite.

    Attributes:
        command: the arguments of Python; of make, where the first of them is make.
        after: names of stages that have to succeed before this one starts.
        niceness: nice value of a build; 0: tests, which other lanes may take over.
        last: starts only when every other stage has ended, because its deadlines need the machine to itself.
        environment: variables, by name.
        preloaded: runs in a fork of the process that has imported torch and the engine, if there is no accelerator.
    """

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    niceness: int = 0
    last: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    preloaded: bool = False

    @property
    def is_pytest(self) -> bool:
        return self.command[:2] == ("-m", "pytest")

    @property
    def is_make(self) -> bool:
        return self.command[0] == "make"

    @property
    def file(self) -> str:
        """The stage's name as the stem of a file."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name)


Lane = tuple[Stage, ...]


def pytest_stage(name: str, marks: str, *arguments: str, after: tuple[str, ...] = (), last: bool = False) -> Stage:
    """A stage that runs the tests with certain marks."""
    return Stage(name, ("-m", "pytest", "-q", "-rfEs", "-m", marks, *arguments), after, last=last)


def engine_lane(files: Sequence[Path]) -> Lane:
    """One process for each file: a process that has loaded Ray cannot fork its workers (docs/adr/0007)."""
    named = {file.stem.removeprefix("test_"): file for file in files}
    names = sorted(named, key=lambda name: LONG.index(name) if name in LONG else len(LONG))
    marks = "engine and not gpu and not npu"
    stages = [pytest_stage(f"engine: {name}", marks, "-W", "default", named[name].as_posix()) for name in names]
    return tuple(replace(stage, preloaded=True) for stage in stages)


def only(chosen: Sequence[Lane], prefixes: Sequence[str]) -> list[Lane]:
    """The stages whose names begin with one of the prefixes, and those that have to run before them."""
    stages = {stage.name: stage for lane in chosen for stage in lane}
    names: set[str] = set()
    added = {name for name in stages if name.startswith(tuple(prefixes))}
    while added:
        names |= added
        added = {before for name in added for before in stages[name].after}
    return [lane for lane in (tuple(stage for stage in lane if stage.name in names) for lane in chosen) if lane]


def fast_stages(*arguments: str) -> tuple[Stage, ...]:
    """The fast tests: those that need torch and those that do not, each in two halves of about the same length.

    Args:
        arguments: of pytest, for each of them.
    """
    quick = f"not slow and {ELSEWHERE}"
    commands = [f"tests/control/{name}" for name in ("cli", "client", "plan")]
    meeting = ("tests/contract", "tests/documents")
    elsewhere = [f"--ignore={path}" for path in ("tests/ml", *meeting, *commands)]
    # Every file of the engine's folder has its mark, and to import them all takes a second.
    others = ("--ignore=tests/ml/trainer", "--ignore=tests/ml/engine")
    with_torch = (
        pytest_stage("fast: ml", quick, *arguments, *others, "tests/ml"),
        pytest_stage("fast: trainer", quick, *arguments, "tests/ml/trainer", *meeting),
    )
    without = (
        pytest_stage("fast: commands", quick, *arguments, *commands),
        pytest_stage("fast: control", quick, *arguments, *elsewhere, "tests"),
    )
    return (*(replace(half, preloaded=True) for half in with_torch), *without)


def slow_stages() -> tuple[Stage, ...]:
    """The slow tests in parts, so that another lane can take over some: the last and longest of them first."""
    paths = [path for part in SLOW.values() for path in part]
    stages = []
    for name, part in SLOW.items():
        ignored = [f"--ignore={path}" for path in paths if any(path.startswith(f"{folder}/") for folder in part)]
        stages.append(pytest_stage(f"slow: {name}", f"slow and {ELSEWHERE}", "-W", "default", *ignored, *part))
    return tuple(replace(stage, preloaded=True) for stage in stages)


def numeric_stages() -> tuple[Stage, ...]:
    """The numeric tests with other instructions; not preloaded, because oneDNN chooses when it is first called."""
    stages = {level: pytest_stage(f"numeric: {level}", ELSEWHERE, "-W", "default", *NUMERIC) for level in INSTRUCTIONS}
    return tuple(replace(stage, environment=(("ONEDNN_MAX_CPU_ISA", level),)) for level, stage in stages.items())


def lanes(target: Target, engine_files: Sequence[Path]) -> list[Lane]:
    """The lanes of a run."""
    keep = ("--keep-sources",) if target is Target.ALL else ()
    programs = Stage(PROGRAMS, ("-u", "-m", "e2e.programs", "control-plane", *keep))
    images = Stage(IMAGES, ("-u", "-m", "e2e.programs", "nodes"), niceness=LEFT_OVER)
    clusters = pytest_stage("whole clusters", "bare", "e2e", "tests", after=(IMAGES,), last=True)
    if target is Target.CLUSTER:
        return [(images,), (clusters,)]
    images = replace(images, after=(PROGRAMS,))
    static = Stage(STATIC, ("make", "--no-print-directory", "static"))
    if target is Target.CHECK:
        return [(static,), *((stage,) for stage in fast_stages(FEWER_EXAMPLES))]
    fast = fast_stages()
    # Its tests of the chart need Helm, which is one of the programs.
    fast = (*fast[:-1], replace(fast[-1], after=(PROGRAMS,)))
    plane = pytest_stage("control plane", "cluster and not bare", "e2e", "tests", after=(PROGRAMS,))
    # Its longest stage before the others, so that at the end both lanes of tests have short ones.
    # A build next to two lanes of tests gets little of the processors: Ray starts its workers in sessions of their own,
    # and Linux shares the processors out between sessions. So the programs, for which long tests wait, are built in
    # place of one lane's tests.
    numeric = numeric_stages() if target is Target.ALL else ()
    main = (static, programs, *fast, plane, *numeric, *slow_stages())
    if target is Target.TEST:
        return [engine_lane(engine_files), main]
    return [engine_lane(engine_files), (*main, clusters), (images,)]
