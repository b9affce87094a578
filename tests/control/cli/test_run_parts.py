"""Units of `drl run` and `drl doctor`: JSON lines, run state, signals, failures, shared memory, diagnosis."""

import itertools
import json
import mmap
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_operator.cli.local import failure, run_folder, run_text
from omni_operator.cli.local.json_lines import JsonLinesReader, MalformedLine, read_records
from omni_operator.cli.local.run import summary, trainer_environment
from omni_operator.cli.local.run_state import RunState, apply_event
from omni_operator.cli.local.shared_memory import remove_newer, segments
from omni_operator.cli.local.supervisor import StopEscalation
from omni_operator.cli.machine.doctor import diagnose
from omni_operator.cli.machine.machine_facts import Accelerators, Machine
from omni_operator.cli.machine.training_stack import STACK

GIB = 1024**3
TRACEBACK = "Traceback (most recent call last):"
OUT_OF_MEMORY = "out of memory: the kernel killed a process of the run"
GOOD = Machine(
    python=(3, 11),
    cpus=2,
    memory=8 * GIB,
    memory_free=6 * GIB,
    shared_memory=4 * GIB,
    shared_memory_free=4 * GIB,
    disk_free=50 * GIB,
    compiler="/usr/bin/cc",
    accelerators=(),
    installed=dict.fromkeys(STACK, "1.0"),
    pinned={},
    reference=None,
)


@given(
    lines=st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_a_reader_returns_every_line_once_for_any_split_of_the_writes(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, object]], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("follow") / "run_text.jsonl"
    reader = JsonLinesReader(path)
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    seen: list[object] = []
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(edges):
        with path.open("ab") as file:
            file.write(data[begin:end])
        seen += reader.read_new()
    assert seen == lines


def test_a_reader_starts_at_the_end_and_ends_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "run_text.jsonl"
    path.write_text('{"event": "old"}\n{"event": "cut o')
    reader = JsonLinesReader(path)
    with path.open("a") as file:
        file.write('{"event": "new"}\n[1]\nnot json\n')
    assert list(reader.read_new()) == [{"event": "new"}, MalformedLine("[1]"), MalformedLine("not json")]
    assert list(reader.read_new()) == []
    # A later reader of the whole file gets the new line as well, not appended to the incomplete one.
    assert {"event": "new"} in list(read_records(path))


def test_a_step_on_pairs_of_a_data_set_has_loss_and_accuracy(tmp_path: Path) -> None:
    steps = [
        {"step": step, "actor/loss": 0.4 / step, "actor/accuracy": 0.5 * step, "actor/margin": 0.1} for step in (1, 2)
    ]
    assert run_text.step_line(steps[1], 2) == "step 2/2  loss 0.200  100.0% of the pairs right  weights v?"
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    learned = "loss 0.400, 50.0% of the pairs right -> loss 0.200, 100.0% of the pairs right at step 2"
    assert summary(tmp_path) == [f"training {learned}"]
    state = apply_event(RunState(), {"event": "step", **steps[1]})
    assert (state.last or {})["actor/loss"] == 0.2


@given(st.lists(st.floats(0, 5), min_size=1, max_size=6), st.floats(0.01, 20))
def test_stop_requests_escalate_and_kill_once(gaps: list[float], patience: float) -> None:
    escalation = StopEscalation(patience)
    now = 0.0
    sent = []
    for gap in gaps:
        now += gap
        sent.append(escalation.request(now))
    assert sent[:2] == [signal.SIGINT, signal.SIGTERM][: len(sent)]
    assert all(number == signal.SIGKILL for number in sent[2:])
    assert escalation.overdue(now) is None
    late = now + patience + 1
    assert escalation.overdue(late) == (signal.SIGKILL if len(sent) == 2 else None)
    assert escalation.overdue(late + 1) is None


@pytest.mark.parametrize(
    ("code", "asked", "stopped"),
    [(130, 1, True), (-2, 1, True), (1, 1, False), (1, 2, True), (-9, 1, False), (-9, 2, True), (130, 0, False)],
)
def test_a_failure_is_distinguished_from_a_stop(code: int, asked: int, stopped: bool) -> None:
    assert failure.was_stopped(code, asked) is stopped


@pytest.mark.parametrize(
    ("code", "reported", "log", "out_of_memory", "printed"),
    [
        (1, "KeyError: a\nmore\nlines", [], False, ["  | more", "  | lines", "failed: KeyError: a"]),
        (1, None, [TRACEBACK, "ValueError: x", "after"], False, [f"  | {TRACEBACK}", "failed: ValueError: x"]),
        (1, None, ["Killed"], False, ["  | Killed", "failed: the trainer exited with code 1; the log has no error"]),
        (2, None, [], False, ["failed: the trainer exited with code 2; the log has no error"]),
        (-11, None, [], False, ["failed: the trainer was ended by SIGSEGV"]),
        (-9, None, [], True, [f"failed: {OUT_OF_MEMORY}"]),
        (1, "a worker died", [], True, [f"failed: {OUT_OF_MEMORY}; a worker died"]),
    ],
)
def test_the_last_line_of_a_failure_is_its_cause(
    code: int, reported: str | None, log: list[str], out_of_memory: bool, printed: list[str]
) -> None:
    lines = failure.explain(code, reported, log, "runs/a/train.log", out_of_memory=out_of_memory, disk_full=False)
    assert lines == [*printed[:-1], "log: runs/a/train.log", printed[-1]]


@pytest.mark.parametrize(
    ("reported", "cause"),
    [(None, "failed: the disk of the run folder is full"), ("OSError: no space", "failed: OSError: no space")],
)
def test_a_full_disk_is_the_cause_of_a_failure_without_an_error(reported: str | None, cause: str) -> None:
    lines = failure.explain(1, reported, [], "train.log", out_of_memory=False, disk_full=True)
    assert lines[-1].startswith(cause)


def test_a_log_excerpt_is_the_last_traceback() -> None:
    log = [
        "INFO starting",
        TRACEBACK,
        "  old",
        "ValueError: old",
        f"\x1b[36m(WorkerDict pid=12)\x1b[0m {TRACEBACK}",
        '\x1b[36m(WorkerDict pid=12)\x1b[0m   File "a.py", line 1, in f',
        "    g()",
        "    ^^^",
        "verl_omni.errors.StaleSample: 3 of 4",
        "INFO shutting down",
        "",
    ]
    excerpt = [TRACEBACK, '  File "a.py", line 1, in f', "    g()", "verl_omni.errors.StaleSample: 3 of 4"]
    assert failure.log_excerpt(log) == excerpt


def test_only_new_unused_segments_of_the_stack_are_removed(tmp_path: Path) -> None:
    (tmp_path / "psm_old").touch()
    before = segments(tmp_path)
    for name in ("psm_new", "torch_1_2_3", "verl_omni_weights_1", "someone_elses", "psm_used", "psm_mapped", "made"):
        (tmp_path / name).write_bytes(b"x")
    with (tmp_path / "psm_used").open(), (tmp_path / "psm_mapped").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        file.close()
        with (tmp_path / "made").open("rb") as file:
            semaphore = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        os.link(tmp_path / "made", tmp_path / "sem.mp-used")  # as sem_open does
        os.unlink(tmp_path / "made")
        removed = remove_newer(before, tmp_path)
        mapped.close()
        semaphore.close()
    assert removed == ["psm_new", "torch_1_2_3", "verl_omni_weights_1"]
    assert sorted(os.listdir(tmp_path)) == ["psm_mapped", "psm_old", "psm_used", "sem.mp-used", "someone_elses"]


def test_the_users_variables_are_kept() -> None:
    assert trainer_environment({"OMP_NUM_THREADS": "8"}, cpu=True, hub=False)["OMP_NUM_THREADS"] == "8"
    assert "VERL_PLATFORM" not in trainer_environment({}, cpu=False, hub=False)


def test_a_trainer_that_sends_to_the_hub_is_not_told_to_stay_offline() -> None:
    assert trainer_environment({}, cpu=True, hub=False)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in trainer_environment({}, cpu=True, hub=True)


def test_a_complete_machine_is_ready() -> None:
    findings = list(diagnose(GOOD))
    assert {finding.level for finding in findings} == {"ok"}
    assert findings[-1].text == "jobs run on the CPU (suitable for tiny models)"
    with_devices = replace(GOOD, accelerators=(Accelerators("NVIDIA", 2, ("NVIDIA H100",)),))
    assert list(diagnose(with_devices))[-1].text == "jobs run on 2 NVIDIA accelerators"


@pytest.mark.parametrize(
    ("change", "level", "message"),
    [
        ({"python": (3, 13)}, "missing", "use Python 3.11 or 3.12"),
        ({"shared_memory": 0}, "missing", "mount -t tmpfs tmpfs /dev/shm"),
        ({"shared_memory_free": 64 * 2**20}, "note", "docker run --shm-size 2g"),
        ({"memory_free": GIB}, "note", "about 4 GiB"),
        ({"disk_free": GIB}, "note", "checkpoints may not fit"),
        ({"compiler": None}, "note", "gcc"),
        ({"installed": {"verl": None}}, "missing", "run `make setup` in a clone"),
        ({"installed": {"verl": "0.8"}, "pinned": {"verl": "0.9.1"}}, "missing", "0.8 is installed, 0.9.1 is needed"),
        ({"reference": "0.1"}, "missing", "remove verl-omni"),
    ],
)
def test_each_finding_has_its_remedy(change: dict[str, object], level: str, message: str) -> None:
    shown = [finding for finding in diagnose(replace(GOOD, **change)) if finding.level != "ok"]
    assert [finding.level for finding in shown] == [level]
    assert message in f"{shown[0].text} {shown[0].remedy}"


def test_remedies_name_only_commands_that_exist() -> None:
    nothing = replace(GOOD, python=(3, 9), compiler=None, reference="1", installed=dict.fromkeys(STACK))
    nothing = replace(nothing, memory_free=0, shared_memory=0, disk_free=0)
    machines = (nothing, replace(GOOD, shared_memory_free=0))
    remedies = [finding.remedy for machine in machines for finding in diagnose(machine) if finding.remedy]
    assert len(remedies) >= 7 + len(STACK)
    makefile = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
    for target in {name for remedy in remedies for name in re.findall(r"\bmake ([a-z-]+)", remedy)}:
        assert f"\n{target}:" in makefile
    assert not [remedy for remedy in remedies if "pip install" in remedy], "the distribution is on no package index"


def test_a_local_build_of_the_pinned_version_is_accepted() -> None:
    built = replace(GOOD, installed={"vllm": "0.30.0+cpu"}, pinned={"vllm": "0.30.0"})
    assert {finding.level for finding in diagnose(built)} == {"ok"}


def test_a_run_that_would_end_before_its_last_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_000030").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_000030" / "manifest.json").touch()
    for total in (30, 31):
        run_folder.check_length(tmp_path, total)
    with pytest.raises(run_folder.RunFolderError, match="checkpoint of step 30, after the last step of this job, 10"):
        run_folder.check_length(tmp_path, 10)
