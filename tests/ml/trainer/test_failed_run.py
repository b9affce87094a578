"""How a run that fails ends: the terminal, and the event that the status and the Kubernetes event are made from."""

import contextlib
import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from tests.ml.trainer import recorded_runs
from tests.ml.trainer.recorded_runs import events, settings
from verl_omni.agent_loop.rows import SampleFailed, SampleLost
from verl_omni.trainer import main_diffusion
from verl_omni.trainer.run.run_folder import RunFolder

SCRIPT = Path(__file__).with_name("failing_run.py")


CASES = {
    "scorer": (
        "SampleFailed",
        "row 0 of 1 at weight version 4 (prompt 'a red circle') failed: "
        "ValueError: Unknown color 'mauve'; one of red, green, blue",
    ),
    "constructor": ("ActorDiedError", "ValueError: no module 'mine'"),
    "raising rank": ("RuntimeError", "RuntimeError: rank 1 has no memory left"),
}
KILLED = "killed rank"


@dataclass(frozen=True)
class Ended:
    """A failed run: its folder, what it printed, and its exit code."""

    folder: Path
    printed: list[str]
    code: int


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The runs of one program, by case: to import Ray and torch takes longer than they do."""
    folder = tmp_path_factory.mktemp("runs")
    program = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *CASES, KILLED],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=570,
        check=False,
    )
    assert program.returncode == 0, program.stdout
    *outputs, _ = re.split(r"^exit code (\d+)\n", program.stdout, flags=re.MULTILINE)
    assert len(outputs) == 2 * (len(CASES) + 1), program.stdout
    texts = outputs[::2]
    codes = outputs[1::2]
    return {
        case: Ended(folder / case, text.splitlines(), int(code))
        for case, text, code in zip((*CASES, KILLED), texts, codes, strict=True)
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_the_last_line_and_the_error_event_are_what_a_worker_raised(ended: dict[str, Ended], case: str) -> None:
    """A real Ray: the error crosses two processes, and Ray prints and wraps it on the way."""
    (kind, message) = CASES[case]
    run = ended[case]
    assert run.code == main_diffusion.FAILURE, run.printed
    assert run.printed[-1] == f"error: {message}"
    assert any("Traceback" in line for line in run.printed), "train.log has the whole traceback"
    assert events(run.folder, "error") == [
        {"event": "error", "message": message, "kind": kind, "reason": "ApplicationError"}
    ]
    assert (run.folder / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ["raising rank", KILLED])
def test_the_failure_of_one_rank_ends_all_ranks(ended: dict[str, Ended], case: str) -> None:
    """The other rank waits for it in a collective, whose own timeout is longer than the program's."""
    run = ended[case]
    assert run.code == main_diffusion.FAILURE
    ranks = [int((run.folder / f"rank-{rank}").read_text()) for rank in range(2)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    (error,) = events(run.folder, "error")
    assert error["reason"] == ("WorkerLost" if case == KILLED else "ApplicationError")


def test_the_error_is_printed_after_what_is_printed_while_a_run_stops(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        resources.callback(sys.stderr.write, "stopping\n")
        raise OSError("disk full")

    assert recorded_runs.run(settings(tmp_path), train) == main_diffusion.FAILURE
    assert capfd.readouterr().err.splitlines()[-2:] == ["stopping", "error: OSError: disk full"]
    assert [error["message"] for error in events(tmp_path, "error")] == ["OSError: disk full"]


def test_a_run_whose_folder_another_program_continues_ends_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        run.folder.step({"step": 1})
        RunFolder(tmp_path).take()
        run.folder.step({"step": 2})

    assert recorded_runs.run(settings(tmp_path), train) == main_diffusion.INTERRUPTED
    assert f"another program trains in {tmp_path} now" in capfd.readouterr().err.splitlines()[-1]
    assert [line["step"] for line in RunFolder(tmp_path).metrics()] == [1]
    assert events(tmp_path, "error") == [] and not (tmp_path / "report.html").exists()


# What gloo says of a rank that was killed, and of one that it never reached.
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
CLOSED = f"{GLOO}Connection closed by peer [10.99.0.13]:6327. This is typically caused by a remote worker crashing."
RESET = f"{GLOO}Read error [10.99.0.13]:47320: Connection reset by peer"
REFUSED = f"Gloo connectFullMesh failed with {GLOO}timed out connecting: SO_ERROR: Connection refused"


def of_a_worker(kind: type[SampleFailed]) -> Exception:
    """The error of an agent-loop worker, as Ray raises it in the driver."""
    cause = kind("row 0 of 4 failed: ReplicaLost: replica 10.0.0.3:80: ActorDiedError")
    error: Exception = RayTaskError("generate", "Traceback", cause).as_instanceof_cause()
    return error


@pytest.mark.parametrize(
    ("error", "killed", "reason"),
    [
        (RayActorError(), 0, "WorkerLost"),
        (RayActorError(), 2, "OutOfMemory"),
        (RuntimeError(CLOSED), 0, "WorkerLost"),
        (RuntimeError(RESET), 0, "WorkerLost"),
        (RuntimeError(REFUSED), 0, "ApplicationError"),
        (of_a_worker(SampleLost), 0, "WorkerLost"),
        (of_a_worker(SampleFailed), 0, "ApplicationError"),
    ],
    ids=["actor", "memory", "closed", "reset", "refused", "lost sample", "failed sample"],
)
def test_a_lost_process_is_the_reason_and_so_is_memory_that_ran_out(
    tmp_path: Path, error: Exception, killed: int, reason: str
) -> None:
    """Also if another process lost it: a rank in an update, or an agent-loop worker while the engine generates."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 1\n")  # an earlier run in the same container lost one too

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        counter.write_text(f"oom_kill {1 + killed}\n")
        raise error

    assert recorded_runs.run(settings(tmp_path), train, cgroups=tmp_path) == main_diffusion.FAILURE
    (event,) = events(tmp_path, "error")
    assert event["reason"] == reason
    assert ("and the kernel killed 2 processes" in event["message"]) == (killed == 2)


@pytest.mark.slow
def test_invalid_settings_are_reported_to_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    posts: list[dict[str, Any]] = []

    class Operator(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments: object) -> None:
            pass

    (tmp_path / "token").write_text("secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), Operator) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DIFFUSIONRL_REPORT_URL", f"http://127.0.0.1:{server.server_port}/v1/reports")
        monkeypatch.setenv("DIFFUSIONRL_REPORT_TOKEN_FILE", str(tmp_path / "token"))
        assert main_diffusion.main(["trainer.save_frq=1"]) == main_diffusion.USAGE_ERROR
        server.shutdown()
    message = "trainer.save_frq: unknown setting; did you mean trainer.save_freq?"
    assert capsys.readouterr().err == f"{message}\n"
    assert [(post["event"], post["message"]) for post in posts] == [("error", message)]


def test_settings_without_effect_are_named_once_with_their_reasons(tmp_path: Path) -> None:
    unused = {"a.b": "nothing is c", "d": "there is no e"}
    recorded_runs.run(settings(tmp_path), lambda run, resources: None, without_effect=unused)
    assert [event["message"] for event in events(tmp_path, "warning")] == [
        "settings that have no effect here: a.b (nothing is c); d (there is no e)"
    ]
