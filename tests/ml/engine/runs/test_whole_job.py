"""A shortened `drl run` of the main job on the real engine: it learns, resumes after any end, and leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.hub_server import Hub, hub_server
from e2e.object_store import ObjectStore, object_store
from tests.ml.engine.shared_memory import SharedMemoryWatch, users_of
from tests.ml.run_metrics import without_durations

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[4]
JOB = "examples/red-grpo.yaml"
STEPS = 8
SAVED = (3, 6, STEPS)
EVALUATED = (0, 4, STEPS)
# The job's own, which `--set` replaces.
OVERRIDES = ("actor_rollout_ref.actor.optim.betas=[0.9,0.95]", "actor_rollout_ref.actor.optim.lr_warmup_steps=5")
SETTINGS = (
    "--plain",
    "--steps",
    str(STEPS),
    "--set",
    f"spec.checkpoint.everySteps={SAVED[0]}",
    "--set",
    f"spec.trainer.evalEverySteps={EVALUATED[1]}",
    "--set",
    "spec.trainer.learningRate=0.01",  # larger than the job's own: learning must be visible in a few steps
    # Evaluate some of the prompts: with one image a batch, evaluating all 200 would take most of the run.
    "--set",
    f"spec.algorithm.overrides={json.dumps([*OVERRIDES, 'data.val_max_samples=16'])}",
    # With larger batches, rounding would depend on the time at which requests arrive.
    "--set",
    "spec.rollout.engine.maxBatchSize=1",
)
MARK = "OMNI_OPERATOR_TEST_RUN"


class Run:
    """A `drl run` whose processes are marked.

    Args:
        store: data and model come from there, and results are sent there.
        hub: results are sent there.
    """

    def __init__(self, runs: Path, store: ObjectStore | None = None, hub: Hub | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = runs / "red-grpo"
        self.watch = SharedMemoryWatch(lambda: {process.pid for process in self.alive()})
        self.process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("drl")),
                "run",
                JOB,
                "--runs",
                str(runs),
                *SETTINGS,
                *(stored_settings(store) if store else ()),
                *(hub_settings(hub) if hub else ()),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                MARK: self.mark,
                **({**store.variables, "XDG_CACHE_HOME": str(runs / "cache")} if store else {}),
                **({**hub.variables, "HF_HUB_OFFLINE": ""} if hub else {}),
            },
        )

    def until_step(self, step: int) -> None:
        """Read its output until a step is reported."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.split()[:2] == ["step", f"{step}/{STEPS}"]:
                return
        raise AssertionError("".join(lines))

    def end(self) -> tuple[int, str]:
        """Wait for its end; the exit code and the rest of the output."""
        output, _ = self.process.communicate(timeout=600)
        return self.process.returncode, output

    def trainer(self) -> psutil.Process:
        """The driver of the training."""
        (trainer,) = [
            p
            for p in self.alive()
            if "verl_omni.trainer.main_diffusion" in p.cmdline() and p.ppid() == self.process.pid
        ]
        return trainer

    def alive(self) -> list[psutil.Process]:
        """Every process that descends from it, orphans too."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return processes

    def check_nothing_left(self, *, killed: bool = False) -> None:
        """Assert that no process and no shared memory is left, once servers have noticed the end of their driver."""
        deadline = time.monotonic() + 60
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left == []
        self.watch.stop()
        # What other programs have open is theirs: this run has ended.
        assert [file for file, pids in users_of(self.watch.left(killed=killed)).items() if not pids] == []

    def metrics(self) -> dict[int, dict[str, Any]]:
        """Metrics of each step without durations; of a repeated step, the last."""
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return {line["step"]: without_durations(line) for line in lines}

    def adapter(self) -> dict[str, torch.Tensor]:
        """The last checkpoint's adapter. Its file differs in the order of its metadata, so tensors are compared."""
        (path,) = (self.folder / "checkpoints" / f"step_{STEPS:06d}").rglob("*lora*.safetensors")
        return load_file(path)


def stored_settings(store: ObjectStore) -> list[str]:
    """Options by which a run reads from the store and sends its results there."""
    values = {
        "model.base": "s3://inputs/model",
        "data.train": "['s3://inputs/train.jsonl']",
        "data.validation": "['s3://inputs/held-out.jsonl']",
        "output": "{url: s3://results/team}",
        "storage": f"{{endpoint: '{store.endpoint}'}}",
    }
    return [part for name, value in values.items() for part in ("--set", f"spec.{name}={value}")]


def hub_settings(hub: Hub) -> list[str]:
    """Options by which a run sends its results to a repository of the hub."""
    return ["--set", "spec.output={url: hf://team/adapters}", "--set", f"spec.storage={{endpoint: '{hub.endpoint}'}}"]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """A hub without repositories."""
    with hub_server() as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A real S3 server with the inputs of the job."""
    try:
        with object_store(tmp_path_factory.mktemp("s3")) as running:
            inputs = running.bucket("inputs")
            running.bucket("results")
            shutil.copytree(ROOT / "examples" / "shapes-sd3", inputs / "model")
            for name, file in (("train", "shapes_train"), ("held-out", "shapes_heldout")):
                shutil.copy(ROOT / "examples" / "prompts" / f"{file}.jsonl", inputs / f"{name}.jsonl")
            yield running
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, hub: Hub) -> Run:
    run = Run(tmp_path_factory.mktemp("unbroken"), hub=hub)
    code, output = run.end()
    assert code == 0, output
    assert "the policy is trained on 1 x cpu" in output
    return run


@pytest.mark.every_run
def test_the_reward_rises_and_every_sample_has_the_weights_of_its_step(unbroken: Run) -> None:
    metrics = unbroken.metrics()
    assert sorted(metrics) == list(range(STEPS + 1))
    held_out = [line["val/reward/mean"] for line in metrics.values() if "val/reward/mean" in line]
    assert len(held_out) == len(EVALUATED)
    # Same prompts and seeds before and after: the remaining noise is far smaller than this.
    assert held_out[-1] > held_out[0] + 0.01
    for step, line in metrics.items():
        assert line["weights/version"] == step
        if step:
            assert line["rollout_corr/mean_abs_diff"] < 1e-5
            assert line["actor/grad_norm"] > 0
    assert "report.html" in {path.name for path in unbroken.folder.iterdir()}
    unbroken.check_nothing_left()


def test_the_page_on_the_hub_says_how_diffusers_loads_the_adapter(unbroken: Run, hub: Hub, tmp_path: Path) -> None:
    sent = hub.commits("team/adapters")
    steps = [json.loads(commit.files["red-grpo/latest.json"])["step"] for commit in sent[1:]]
    assert set(steps) <= set(SAVED) and steps == sorted(steps) and steps[-1] == STEPS
    files = sent[-1].files
    assert files["red-grpo/report.html"] == (unbroken.folder / "report.html").read_bytes()
    code = files["README.md"].decode().split("```python\n")[1].split("```")[0]
    model = ROOT / "examples" / "shapes-sd3"
    code = code.replace("FOLDER-OF-THE-BASE-MODEL", str(model))
    # And from a folder, which is what `hf download` makes.
    code += f"""
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
state = lambda pipe: {{k: v.contiguous() for k, v in pipe.transformer.state_dict().items() if "lora_" in k}}
other = DiffusionPipeline.from_pretrained({str(model)!r})
folder = snapshot_download(repository, local_dir={str(tmp_path / "downloaded")!r})
other.load_lora_weights(folder, subfolder=f"{{run}}/{{newest}}/lora", weight_name="pytorch_lora_weights.safetensors")
save_file(state(pipe), {str(tmp_path / "one.safetensors")!r})
save_file(state(other), {str(tmp_path / "other.safetensors")!r})
"""
    reader = {
        **os.environ,
        **hub.variables,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "home"),
    }
    subprocess.run([sys.executable, "-c", code], env=reader, check=True, timeout=300)
    loaded, again = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "other"))
    assert len(loaded) == len(unbroken.adapter()) > 0 and loaded.keys() == again.keys()
    assert all(torch.equal(loaded[name], again[name]) for name in loaded)
    trained = sorted(float(tensor.double().sum()) for tensor in unbroken.adapter().values())
    assert sorted(float(tensor.double().sum()) for tensor in loaded.values()) == trained


def test_an_interrupted_and_killed_run_from_a_store_ends_like_an_uninterrupted_one(
    unbroken: Run, store: ObjectStore, tmp_path: Path
) -> None:
    first = Run(tmp_path, store)
    first.until_step(1)
    first.process.send_signal(signal.SIGINT)
    code, output = first.end()
    assert code == 130, output
    first.check_nothing_left()
    stopped_at = max(first.metrics())
    assert (first.folder / "checkpoints" / f"step_{stopped_at:06d}").is_dir()

    second = Run(tmp_path, store)
    second.until_step(4)
    second.trainer().kill()
    code, output = second.end()
    assert code != 0, output
    second.check_nothing_left(killed=True)

    third = Run(tmp_path, store)
    third.until_step(7)
    third.process.kill()
    third.process.communicate()
    third.check_nothing_left(killed=True)

    fourth = Run(tmp_path, store)
    code, output = fourth.end()
    assert code == 0, output
    fourth.check_nothing_left()
    assert fourth.metrics() == unbroken.metrics()
    resumed = fourth.adapter()
    expected = unbroken.adapter()
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], expected[name]) for name in resumed)
    # The store has the adapter of the last checkpoint and the report, and says so.
    results = store.bucket("results") / "team" / "red-grpo"
    assert json.loads((results / "latest.json").read_text())["checkpoint"] == f"checkpoints/step_{STEPS:06d}"
    (sent,) = (results / "checkpoints" / f"step_{STEPS:06d}").rglob("*lora*.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_file(sent).items())
    assert (results / "report.html").read_bytes() == (fourth.folder / "report.html").read_bytes()
    assert len(list((results / "samples").glob("step_*"))) == len(EVALUATED)
