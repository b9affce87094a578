"""A run whose judge is killed: on the trainer's accelerators it ends with an error, otherwise the judge is replaced."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ml.engine import forked_program
from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.small_run import small_run
from verl_omni.models.vision_language import make_tiny_qwen3_vl
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

RM = "reward.reward_model"
# seconds
START = 400.0
END = 180.0
STEPS = 5  # more than are complete when the judge is killed


def processes(of: int, named: str) -> list[psutil.Process]:
    """The descendants of a process, by the beginning of their title."""
    matching = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(named):
                matching.append(process)
        except psutil.NoSuchProcess:
            continue
    return matching


def wait_for(condition: Callable[[], Any], ended: Callable[[], str | None]) -> Any:
    end = time.monotonic() + START
    while not (value := condition()):
        assert (message := ended()) is None, message
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


def start(
    folder: Path, *more: str, change: Callable[[Path], None] = lambda judge: None
) -> tuple[subprocess.Popen[str], Path, Path]:
    """A run of a tiny model with a tiny judge, its log, and the folder of the judge's model."""
    model = folder / "model"
    judge = folder / "judge"
    log = folder / "log"
    make_tiny_sd3(model)
    make_tiny_qwen3_vl(judge)
    change(judge)
    prompts = folder / "rows.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"a {c} circle", "ground_truth": "a"}) + "\n" for c in ("red", "blue"))
    )
    settings = (
        *small_run(model),
        f"data.train_files='{prompts}'",
        f"trainer.default_local_dir='{folder / 'run'}'",
        "reward.scorer=genrm_ocr",
        "reward.scorer_kwargs.max_tokens=4",
        f"{RM}.enable=true",
        f"{RM}.model_path='{judge}'",
        f"{RM}.rollout.tensor_model_parallel_size=1",
        f"{RM}.rollout.max_model_len=512",
        f"{RM}.rollout.max_num_seqs=8",
        f"{RM}.rollout.dtype=float32",
        *more,
    )
    with log.open("w") as output:
        command = [sys.executable, "-m", "verl_omni.trainer.main_diffusion", *settings]
        return forked_program.start(command, stdout=output, stderr=subprocess.STDOUT), log, judge


def kill_judge(running: subprocess.Popen[str], log: Path) -> list[psutil.Process]:
    """Kill the only server of the judge in the second step or later. Returns its engine's processes."""
    metrics = log.parent / "run" / "metrics.jsonl"

    def ended() -> str | None:
        return log.read_text() if running.poll() is not None else None

    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 1, ended)
    (server,) = processes(running.pid, "ray::JudgeServer")
    engines = processes(server.pid, "VLLM::EngineCore")
    assert engines, "the judge has no engine process to leave behind"
    server.send_signal(signal.SIGKILL)
    return engines


def test_the_error_of_a_judge_whose_engine_does_not_start_is_that_of_the_engine(tmp_path: Path) -> None:
    """vLLM only logs it, and raises that there is a root cause above."""
    before = Leftovers()
    running, log, _ = start(tmp_path, "trainer.total_training_steps=1", change=without_norm)
    try:
        assert running.wait(START) != 0
    finally:
        running.kill()
        running.wait()
    (*_, last) = log.read_text().strip().splitlines()
    assert "the engine did not start: " in last and "root cause" not in last, last
    assert "ValueError" in last and "norm.weight" in last, last
    before.none(killed=True)


def without_norm(judge: Path) -> None:
    """Remove the last norm of the language model from a judge's file."""
    from safetensors.torch import load_file, save_file

    (file,) = judge.glob("*.safetensors")
    weights = load_file(file)
    (name,) = [name for name in weights if name.endswith("language_model.norm.weight")]
    del weights[name]
    save_file(weights, file, {"format": "pt"})


def none_runs(engines: list[psutil.Process]) -> bool:
    return not any(engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE for engine in engines)


def test_a_run_whose_judge_is_killed_names_it_and_leaves_no_process(tmp_path: Path) -> None:
    before = Leftovers()
    running, log, judge = start(tmp_path, "trainer.total_training_steps=1000")
    try:
        engines = kill_judge(running, log)
        assert running.wait(END) != 0
    finally:
        running.kill()
        running.wait()
    output = log.read_text()
    assert f"the judge {judge}" in output, output[-4000:]
    before.none(killed=True)
    assert none_runs(engines)


def test_a_killed_judge_with_accelerators_of_its_own_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    before = Leftovers()
    own_pool = (f"{RM}.enable_resource_pool=true", f"{RM}.nnodes=1", f"{RM}.n_gpus_per_node=1")
    running, log, _ = start(tmp_path, f"trainer.total_training_steps={STEPS}", *own_pool)
    try:
        engines = kill_judge(running, log)
        assert running.wait(START) == 0, log.read_text()[-4000:]
    finally:
        running.kill()
        running.wait()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == STEPS
    events = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    lost = [event["message"] for event in events if event.get("reason") == "ReplicaRemoved"]
    assert [text.partition(" serves no more: ")[0] for text in lost] == ["judge replica 0"]
    (joined,) = (event["text"] for event in events if "joined" in event.get("text", ""))
    assert joined.startswith("judge replica 1 joined: ")
    before.none(killed=True)
    assert none_runs(engines)
