"""A fake trainer for tests of `drl run`: writes a run folder like the real one; `test.behave` selects its behavior.

It waits for signals, never for a time, so that results do not depend on the load of the machine.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STUBBORN_CHILD = (
    "import signal, sys\n"
    "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]\n"
    "print('ready', flush=True)\n"
    "signal.pause()\n"
)
settings = dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:])
folder = Path(settings["trainer.default_local_dir"])
total = int(settings["trainer.total_training_steps"])
behave = settings.get("test.behave", "well")
asked: list[int] = []


def append(name: str, record: dict[str, object]) -> None:
    with (folder / name).open("a") as file:
        file.write(json.dumps(record) + "\n")


def event(name: str, **fields: object) -> None:
    append("progress.jsonl", {"event": name, **fields})


def line(record: dict[str, object]) -> None:
    append("metrics.jsonl", record)
    event("step", **record, eta_s=(total - int(str(record["step"]))) * 2.0)


def save(step: int) -> None:
    path = folder / "checkpoints" / f"step_{step:06d}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.json").write_text("{}")
    event("checkpoint", step=step, path=str(path))


def stubborn_child() -> None:
    """Start a child in its own session that ignores SIGINT and SIGTERM, and write its pid for the test."""
    child = subprocess.Popen(
        [sys.executable, "-c", STUBBORN_CHILD], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")


def run() -> int:
    saved = sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step_*"))
    first = saved[-1] if saved and settings["trainer.resume_mode"] == "auto" else 0
    event("start", total_steps=total, resumed_from=first or None)
    event("phase", text="starting Ray")
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))
    if behave == "refuse":
        sys.stderr.write("reward.reward_functions.sky.clouds: unknown setting\n")
        return 2
    if not first:
        line({"step": 0, "weights/version": 0, "val/reward/mean": 0.5, "val/reward/stderr": 0.035, "val/n": 200})
    for step in range(first + 1, total + 1):
        if behave == "fail" and step == 2:
            raise RuntimeError("the reward server is away")
        if behave == "report-error" and step == 2:
            message = "ValueError: no sky in the image (prompt 'a cat', replica 0, weights 1)"
            event("error", kind="ScoringFailed", message=f"ScoringFailed: {message}")
            raise RuntimeError("99 lines of Ray")
        if behave == "control" and step == 2:  # as a prompt of another user's data set may have
            event("phase", text="waiting for \x1b]0;title\x07 \x9b2J")
            event("warning", reason="PromptsTruncated", message="prompt '\x1b]0;title\x07 \x9b2J'")
            event("error", kind="ScoringFailed", message="prompt '\x1b]0;title\x07 \x9b2J'")
            return 1
        if behave == "die" and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        record: dict[str, object] = {
            "step": step,
            "weights/version": step,
            "reward/mean": 0.4 + step / 100,
            "reward/std": 0.21,
            "images_per_s": 9.12,
            "timing_s/generate": 5.21,
            "timing_s/reward": 0.04,
            "timing_s/update": 7.2,
            "timing_s/sync": 0.12,
        }
        if step == total:
            record |= {"val/reward/mean": 0.595, "val/reward/stderr": 0.034, "val/n": 200, "val/correct/mean": 0.595}
        line(record)
        if behave == "wait" and step == 1:
            signal.sigwait({signal.SIGINT})
            save(step)
            event("stopped", message="stopped after step 1")
            return 130
        if behave == "stubborn" and step == 1:
            signal.pause()
            signal.pause()
            signal.pause()
    save(total)
    (folder / "report.html").write_text("<html></html>")
    event("done", step=total, report=str(folder / "report.html"))
    return 0


if behave == "wait":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    (folder / "pids").write_text(str(os.getpid()))
if behave == "stubborn":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(number))
if behave in ("stubborn", "litter"):
    (Path("/dev/shm") / f"psm_drltest{os.getpid()}").write_bytes(b"x")
    stubborn_child()
sys.exit(run())
