"""The fork server alone, and with a real Ray. Each test uses its own process, because forks copy everything."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from verl_omni.platforms.cpu.fork_server.client import SERVER as SERVER_NAME
from verl_omni.platforms.cpu.fork_server.head import AGENT, CLIENT

pytestmark = pytest.mark.slow  # each server imports torch

# Prints its name, then serves until standard input is closed.
SERVER = """
import os, socket, sys
import numpy, torch
from verl_omni.platforms.cpu.fork_server import server
name = f"omni-test-{os.getpid()}"
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"\\0{name}")
listener.listen(8)
print(name, flush=True)
try:
    server.run(listener, 0)
finally:
    print("the driver's own work went on in a fork", flush=True)
"""
DEADLINE = 60


# Its first fork fails.
FULL = """
import os
fork = os.fork
def refused():
    os.fork = fork
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refused
"""


def started(before: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", before + SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.address = process.stdout.readline().strip()  # type: ignore[attr-defined]
    return process


@pytest.fixture(scope="module")
def server() -> object:
    process = started()
    assert process.stdin is not None and process.stdout is not None
    yield process
    process.stdin.close()
    assert process.wait(DEADLINE) == 0
    assert process.stdout.read() == ""
    process.stdout.close()


def client(server: object, script: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, SERVER_NAME: server.address}  # type: ignore[attr-defined]
    command = [sys.executable, CLIENT, str(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)  # type: ignore[call-overload, no-any-return]


def test_a_script_runs_as_if_python_had_started_it(
    server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(__name__, sys.argv[1:], os.environ['MARK'], os.getcwd(), os.getppid())\nsys.exit(7)\n"
    )
    context = {"py_executable": sys.executable, "env_vars": {"MARK": "he${HERE}${ABSENT}"}}
    of_ray = [f"--serialized-runtime-env-context={json.dumps(context)}", "--language=PYTHON"]
    monkeypatch.setenv("HERE", "re")
    process = client(server, script, "one", *of_ray, "two", cwd=tmp_path)
    output, _ = process.communicate(timeout=DEADLINE)
    assert output.split() == ["__main__", "['one',", "'two']", "here", str(tmp_path), str(server.pid)]  # type: ignore[attr-defined]
    assert process.returncode == 7


def test_forks_draw_different_random_numbers(server: object, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    )
    numbers = [client(server, script).communicate(timeout=DEADLINE)[0].split() for _ in range(2)]
    assert len(numbers[0]) == 3
    assert not set(numbers[0]) & set(numbers[1])


def test_a_fork_ends_when_its_client_is_killed(server: object, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    process = client(server, script)
    assert process.stdout is not None
    fork = psutil.Process(int(process.stdout.readline()))
    process.kill()
    fork.wait(DEADLINE)
    assert process.wait(DEADLINE) == -signal.SIGKILL
    process.stdout.close()


def test_the_server_kills_a_fork_that_does_not_exit(tmp_path: Path) -> None:
    """A process that is stopped takes no other signal."""
    server = started()
    script = tmp_path / "script.py"
    script.write_text("import os, signal\nprint(os.getpid(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    process = client(server, script)
    assert process.stdout is not None and server.stdin is not None and server.stdout is not None
    fork = psutil.Process(int(process.stdout.readline()))
    server.stdin.close()
    assert server.wait(DEADLINE) == 0
    assert process.wait(DEADLINE) != 0
    assert not fork.is_running()
    process.stdout.close()
    server.stdout.close()


def test_a_signal_reaches_the_fork(server: object, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    process = client(server, script)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM
    process.stdout.close()


def test_a_fork_that_fails_does_not_end_the_server_and_the_other_forks(tmp_path: Path) -> None:
    server = started(FULL)
    script = tmp_path / "script.py"
    script.write_text("print('runs')\n")
    refused = client(server, script, stderr=subprocess.PIPE)
    output, error = refused.communicate(timeout=DEADLINE)
    assert (output, refused.returncode) == ("", 1) and "no Ray worker was forked" in error
    process = client(server, script)
    assert process.communicate(timeout=DEADLINE)[0] == "runs\n"
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    assert server.wait(DEADLINE) == 0
    server.stdout.close()


def test_a_client_that_sends_nothing_does_not_stop_the_server(server: object, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('runs')\n")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{server.address}")  # type: ignore[attr-defined]
        assert client(server, script).communicate(timeout=DEADLINE)[0] == "runs\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as another user")
def test_requests_of_another_user_are_refused(server: object, tmp_path: Path) -> None:
    as_another = (
        "import array, contextlib, json, os, re, signal, socket, sys; sys.argv = ['client', 'x.py']; "
        "os.setuid(65534); exec(open(0).read())"
    )
    asked = subprocess.run(
        [sys.executable, "-c", as_another],
        env={**os.environ, SERVER_NAME: server.address},  # type: ignore[attr-defined]
        input=Path(CLIENT).read_text(),
        text=True,
        timeout=DEADLINE,
        capture_output=True,
        check=False,
    )
    assert asked.returncode == 1
    assert "no Ray worker was forked" in asked.stderr


@pytest.mark.parametrize("python", [sys.executable, "/another/python"])
def test_without_a_server_or_with_another_python_rays_own_program_starts_the_worker(
    python: str, server: object, tmp_path: Path
) -> None:
    (tmp_path / "setup_worker.py").write_text("import sys\nprint(sys.argv[1:])\n")
    context = f"--serialized-runtime-env-context={json.dumps({'py_executable': python})}"
    address = "omni-test-absent" if python == sys.executable else server.address  # type: ignore[attr-defined]
    arguments = [str(tmp_path / "default_worker.py"), "one", context]
    done = subprocess.run(
        [sys.executable, CLIENT, *arguments],
        env={**os.environ, SERVER_NAME: address},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert done.stdout == f"{arguments}\n"


def test_ray_workers_are_forks_and_no_process_is_left(tmp_path: Path) -> None:
    script = Path(__file__).with_name("forked_ray.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "a line of a worker" in done.stdout + done.stderr
    left = [int(pid) for pid in done.stdout.split()[-1].split(",")]
    assert [pid for pid in left if psutil.pid_exists(pid)] == []


def test_the_program_instead_of_the_dashboards_agent_ends_with_its_raylet(tmp_path: Path) -> None:
    options = [AGENT, "agent.py", f"--session-dir={tmp_path}", "--node-id=01", "--head"]
    starts_it = f"import subprocess; print(subprocess.Popen([{sys.executable!r}, *{options}]).pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", starts_it], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as raylet:
        assert raylet.stdout is not None
        agent = psutil.Process(int(raylet.stdout.readline()))
        while len(list(tmp_path.glob("*_port_01"))) < 3:
            assert agent.is_running()
            time.sleep(0.05)
        raylet.kill()
    agent.wait(DEADLINE)
    assert {file.read_text() for file in tmp_path.iterdir()} == {"-1"}


def test_a_ray_that_does_not_start_is_retried_then_reported() -> None:
    script = "from verl_omni.platforms.cpu.fork_server import ForkingCluster; ForkingCluster(no_such_option=1)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert done.stderr.count("retrying") == 2
    assert "RuntimeError: Ray did not start in 3 attempts" in done.stderr
    assert "no_such_option" in done.stderr
