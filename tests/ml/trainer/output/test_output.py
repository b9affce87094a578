"""Results that leave for a store, and inputs that come from one: a real S3 server that checks signatures."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.object_store import ObjectStore, object_store
from tests.ml.trainer import recorded_runs
from tests.ml.trainer.output.output_runs import files, first_step, save, until
from tests.ml.trainer.recorded_runs import Recorder, events
from verl_omni.trainer import main_diffusion
from verl_omni.trainer.output import inputs, uploads
from verl_omni.trainer.output.destinations import StoreDestination
from verl_omni.trainer.run.run_folder import RunFolder
from verl_omni.utils import stores
from verl_omni.utils.stores import Access, Store, StoreError

pytestmark = pytest.mark.slow  # the server is built once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    try:
        with object_store(tmp_path_factory.mktemp("s3")) as running:
            yield running
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture
def bucket(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server.bucket(f"bucket-{len(list(server.folder.iterdir()))}")


def settings(folder: Path, server: ObjectStore, url: str, deadline: float = 30) -> Any:
    output = {"url": url, "deadline_s": deadline}
    return recorded_runs.settings(folder, output=output, store={"endpoint": server.endpoint, "region": None})


def save_adapter(folder: RunFolder, step: int) -> Path:
    """A checkpoint with an adapter."""
    weights = folder.path / "checkpoints" / f"step_{step:06d}" / "lora"
    weights.mkdir(parents=True)
    (weights / "w").write_text("w")
    return weights.parent


def test_adapter_report_and_samples_are_in_the_store_after_a_checkpoint_and_at_the_end(
    server: ObjectStore, bucket: Path, tmp_path: Path
) -> None:
    during: set[str] = set()

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        first_step(run)
        until((bucket / "team" / "a-job" / "latest.json").exists)
        during.update(files(bucket / "team" / "a-job"))
        save(run, 4)

    config = settings(tmp_path / "a-job", server, f"s3://{bucket.name}/team/a-job")
    assert recorded_runs.run(config, train) == main_diffusion.OK
    adapters = {f"checkpoints/step_00000{step}/lora/weights.safetensors" for step in (2, 4)}
    common = {"samples/step_000002/00.png", "report.html", "config.yaml", "metrics.jsonl", "latest.json"}
    assert common | {min(adapters)} <= during, "the checkpoint's results came while the training went on"
    results = bucket / "team" / "a-job"
    assert common | adapters <= files(results)
    assert not any("state" in name for name in files(results)), "what only a resumed run reads stays in the run folder"
    assert json.loads((results / "latest.json").read_text()) == {"step": 4, "checkpoint": "checkpoints/step_000004"}
    assert (results / "report.html").read_bytes() == (tmp_path / "a-job" / "report.html").read_bytes()
    assert [event["step"] for event in events(tmp_path / "a-job", "output")] == [2, 4, 4]
    assert events(tmp_path / "a-job")[-1]["event"] == "done"


def test_adapters_between_checkpoints_are_sent_and_the_newest_is_named(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    newest: list[str] = []

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        save(run, 2)
        save(run, 3, kind="adapter")
        until((sent / "adapters" / "step_000003" / "lora" / "weights.safetensors").exists)
        until(lambda: "step_000003" in (sent / "latest.json").read_text())
        newest.append(json.loads((sent / "latest.json").read_text())["checkpoint"])

    output = {"url": f"file://{sent}", "deadline_s": 30}
    config = recorded_runs.settings(tmp_path / "run", output=output, store={"endpoint": None, "region": None})
    assert recorded_runs.run(config, train) == main_diffusion.OK
    assert newest == ["adapters/step_000003"]
    assert files(sent / "adapters") == {"step_000003/lora/weights.safetensors"}


def test_a_report_that_cannot_be_written_holds_up_neither_results_nor_the_end_of_the_run(tmp_path: Path) -> None:
    writes = iter([OSError(28, "No space left on device"), RuntimeError("a bug")])

    def write(folder: Path) -> None:
        if (error := next(writes, None)) is not None:
            raise error

    folder = RunFolder(tmp_path / "run")
    sending = uploads.Output(StoreDestination(Store(f"file://{tmp_path}/out")), folder, 30, write_report=write)
    for step in (1, 2, 3):
        sending.add(step, save_adapter(folder, step))
        waiting = threading.Thread(target=sending.wait, daemon=True)
        waiting.start()
        waiting.join(60)
        assert not waiting.is_alive()
    assert [event["reason"] for event in events(tmp_path / "run", "warning")] == ["ReportNotWritten"]
    assert {f"checkpoints/step_00000{step}/lora/w" for step in (1, 3)} <= files(tmp_path / "out")


def test_pods_that_download_into_one_folder_at_the_same_time_all_get_the_files(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    content = {name: bytes([number]) * (3 * stores.BLOCK) for number, name in enumerate("ab")}
    for name, data in content.items():
        (tmp_path / "store" / name).write_bytes(data)
    begin = threading.Barrier(4)
    failed = list[Exception]()

    def download() -> None:
        begin.wait(60)
        try:
            stores.download(f"file://{tmp_path}/store", tmp_path / "cache")
        except Exception as error:
            failed.append(error)

    pods = [threading.Thread(target=download) for _ in range(4)]
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.join(60)
    assert not failed
    assert {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()} == content


def test_only_what_was_replaced_in_the_store_is_downloaded_again(
    server: ObjectStore, bucket: Path, tmp_path: Path
) -> None:
    def download() -> dict[str, str]:
        where = stores.Access(server.endpoint)
        assert stores.download(f"s3://{bucket.name}/model", tmp_path / "cache", where) == 2
        return {path.name: path.read_text() for path in (tmp_path / "cache").iterdir()}

    objects = {name: bucket / "model" / name for name in ("replaced", "kept")}
    objects["kept"].parent.mkdir()
    for path in objects.values():
        path.write_text("first")
    assert download() == {"replaced": "first", "kept": "first"}
    second = 1_000_000_000
    for name, after in (("replaced", 1), ("kept", 0)):  # the other one only looks as if it was replaced: same time
        changed = objects[name].stat().st_mtime_ns + after * second
        objects[name].write_text("other")
        os.utime(objects[name], ns=(changed, changed))
    cut = (tmp_path / "cache" / "kept").stat().st_mtime_ns // second * second
    os.utime(tmp_path / "cache" / "kept", ns=(cut, cut))  # as a file system does that has whole seconds
    assert download() == {"replaced": "other", "kept": "first"}
    newer = tmp_path / "cache" / "replaced"
    newer.write_text("mixed")
    later = objects["replaced"].stat().st_mtime_ns + second
    os.utime(newer, ns=(later, later))
    assert download() == {"replaced": "mixed", "kept": "first"}, "not every file system takes the time of an object"


@pytest.mark.parametrize(
    ("name", "secret", "code"), [("", "wrong", "SIGNATURE_DOES_NOT_MATCH"), ("no-such-bucket", None, "NO_SUCH_BUCKET")]
)
def test_a_store_that_refuses_ends_the_run_before_it_trains(
    server: ObjectStore,
    bucket: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    secret: str | None,
    code: str,
) -> None:
    monkeypatch.setattr(uploads, "CHECK_SECONDS", 0.1)
    if secret:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    trained: list[int] = []
    config = settings(tmp_path / "run", server, f"s3://{name or bucket.name}/run")
    assert recorded_runs.run(config, lambda run, resources: trained.append(1)) == 1
    assert trained == []
    (error,) = events(tmp_path / "run", "error")
    assert error["reason"] == "OutputNotSent"
    assert code in error["message"]
    assert f"they are in {tmp_path / 'run'}" in error["message"]


def output_to(
    server: ObjectStore, bucket: Path, folder: RunFolder, deadline_s: float, writer: Recorder
) -> uploads.Output:
    """The results of a run on their way to a store, without a report."""
    destination = StoreDestination(Store(f"s3://{bucket.name}/run", Access(server.endpoint)))
    return uploads.Output(destination, folder, deadline_s, writer=writer, pause=0.01, write_report=lambda path: None)


def test_a_store_that_comes_back_before_the_deadline_gets_everything(
    server: ObjectStore, bucket: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.path / "config.yaml").write_text("a: 1\n")
    away = bucket.with_name(f"{bucket.name}-gone")
    bucket.rename(away)
    asked = threading.Event()

    class Announcing(Recorder):
        def add(self, metric: Any, value: float, **labels: str) -> None:
            super().add(metric, value)
            asked.set()

    writer = Announcing()
    output = output_to(server, bucket, folder, deadline_s=60, writer=writer)
    output.add(2, save_adapter(folder, 2))
    assert asked.wait(30)
    away.rename(bucket)
    output.wait()
    assert files(bucket / "run") == {"checkpoints/step_000002/lora/w", "config.yaml", "latest.json"}
    assert writer.values["omni_output_failures_total"] >= 1
    assert writer.values["omni_output_step"] == 2


def test_what_waits_while_a_store_is_down_is_given_up_but_for_the_newest(
    server: ObjectStore, bucket: Path, tmp_path: Path
) -> None:
    bucket.rename(bucket.with_name(f"{bucket.name}-gone"))
    folder = RunFolder(tmp_path / "run")
    output = output_to(server, bucket, folder, deadline_s=0.2, writer=Recorder())
    for step in range(1, 6):
        output.add(step, save_adapter(folder, step))
    output.wait()
    warned = [event["step"] for event in events(folder.path)]
    assert len(warned) <= 3 and warned[-1] == 5


def with_inputs(server: ObjectStore, bucket: Path, files: Any, nodes: int) -> Any:
    """The settings of a run whose model is in a store."""
    return OmegaConf.create(
        {
            "data": {"train_files": files, "val_files": None},
            "algorithm": {"sample_source": "online"},
            "actor_rollout_ref": {"model": {"path": f"s3://{bucket.name}/model"}, "rollout": {"nnodes": 0}},
            "trainer": {"nnodes": nodes, "store": {"endpoint": server.endpoint, "region": None}},
        }
    )


def test_inputs_in_a_store_are_copied_once_and_again_when_they_change(
    server: ObjectStore, bucket: Path, tmp_path: Path
) -> None:
    (bucket / "model" / "tokenizer").mkdir(parents=True)
    (bucket / "model" / "model_index.json").write_text("{}")
    (bucket / "model" / "tokenizer" / "vocab.json").write_text("[]")
    (bucket / "train.jsonl").write_text('{"prompt": "a"}\n')

    def fetched() -> Any:
        config = with_inputs(server, bucket, [f"s3://{bucket.name}/train.jsonl", "/local.jsonl"], nodes=1)
        inputs.fetch(config, tmp_path / "cache", lambda text: None)
        return config

    first = fetched()
    data, local = first.data.train_files
    assert Path(data).read_text() == '{"prompt": "a"}\n' and Path(data).name == "train.jsonl"
    assert local == "/local.jsonl"
    assert files(Path(first.actor_rollout_ref.model.path)) == {"model_index.json", "tokenizer/vocab.json"}
    assert fetched() == first
    (bucket / "train.jsonl").write_text('{"prompt": "longer"}\n')
    assert Path(fetched().data.train_files[0]).read_text() == '{"prompt": "longer"}\n'


def test_inputs_that_a_run_cannot_use_are_refused(server: ObjectStore, bucket: Path, tmp_path: Path) -> None:
    config = with_inputs(server, bucket, f"s3://{bucket.name}/none.jsonl", nodes=2)
    with pytest.raises(StoreError, match=r"none\.jsonl could not be read"):
        inputs.fetch(config, tmp_path, lambda text: None)
    config.data.train_files = "/local.jsonl"
    with pytest.raises(ValueError, match="this run has several nodes"):
        inputs.fetch(config, tmp_path, lambda text: None)
    config.data.train_files = f"s3://{bucket.name}/a.jsonl"
    config.algorithm.sample_source = "offline"
    with pytest.raises(ValueError, match="sample_source=offline reads images next to the file"):
        inputs.fetch(config, tmp_path, lambda text: None)


def test_the_download_of_a_pod_says_what_it_did_or_why_not(
    server: ObjectStore, bucket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bucket / "model").mkdir()
    (bucket / "model" / "model_index.json").write_text("{}")
    command = ["download", f"s3://{bucket.name}/model", str(tmp_path / "model"), "--endpoint", server.endpoint]
    assert stores.main(command) == 0
    assert files(tmp_path / "model") == {"model_index.json"}
    assert stores.main(["download", f"s3://{bucket.name}/nothing", str(tmp_path / "x"), *command[3:]]) == 1
    assert f"s3://{bucket.name}/nothing could not be read" in capsys.readouterr().err
    with pytest.raises(ValueError, match="not the URL of a store"):
        Store("hf://owner/name")
