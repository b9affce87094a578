"""Results that leave for a repository of the Hugging Face hub: the real client, against a small hub on the loopback."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from e2e.hub_server import READER, TOKEN, Fault, Hub, hub_server
from tests.ml.trainer import recorded_runs
from tests.ml.trainer.output.output_runs import first_step, save, until
from tests.ml.trainer.recorded_runs import events, run
from verl_omni.trainer import main_diffusion, startup
from verl_omni.trainer.output import hub_destination, uploads
from verl_omni.utils import hub_commit

pytestmark = pytest.mark.slow  # each commit is a program
REPOSITORY = "team/adapters"
COMMIT = f"POST /api/models/{REPOSITORY}/commit"
ADAPTERS = [f"a-job/checkpoints/step_00000{step}/lora/weights.safetensors" for step in (2, 4)]
Train = Callable[[main_diffusion.Run, contextlib.ExitStack], None]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as running:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # what the trainer sets for itself
        yield running


def settings(folder: Path, hub: Hub, deadline: float = 30, *, url: str = f"hf://{REPOSITORY}/a-job") -> Any:
    store = {"endpoint": hub.endpoint, "region": None}
    run_settings = recorded_runs.settings(folder, output={"url": url, "deadline_s": deadline}, store=store)
    model = {"path": "/models/base", "architecture": "StableDiffusion3Pipeline"}
    return OmegaConf.merge(run_settings, {"actor_rollout_ref": {"model": model, "rollout": {"pipeline": {}}}})


def saves(*steps: int, adapter: bool = True) -> Train:
    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        for step in steps:
            save(run, step, adapter=adapter)

    return train


def latest(files: Any) -> Any:
    return json.loads(files["a-job/latest.json"])


def test_each_checkpoint_is_one_commit_with_its_latest(hub: Hub, tmp_path: Path) -> None:
    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        first_step(run)
        until(lambda: len(hub.commits(REPOSITORY)) == 2)
        save(run, 4)
        until(lambda: len(hub.commits(REPOSITORY)) == 3)

    assert run(settings(tmp_path / "a-job", hub), train) == main_diffusion.OK
    first, two, four, last = hub.commits(REPOSITORY)
    assert [commit.title for commit in (first, two, four, last)] == [
        "a-job: settings",
        "a-job: results of step 2",
        "a-job: results of step 4",
        "a-job: results of step 4",
    ]
    assert first.added == {"a-job/config.yaml"}
    texts = {"a-job/metrics.jsonl", "a-job/progress.jsonl", "a-job/report.html", "a-job/latest.json"}
    of_the_run = {"a-job/versions.json", "a-job/machine.json"}
    assert two.added == {ADAPTERS[0], "a-job/samples/step_000002/00.png", "README.md", *of_the_run, *texts}
    assert four.added >= {ADAPTERS[1], "a-job/latest.json"} and not four.added & two.added - texts
    assert last.added <= texts - {"a-job/latest.json"}, "only what changed since"
    assert [latest(commit.files) for commit in (two, four, last)] == [
        {"step": step, "checkpoint": f"checkpoints/step_00000{step}"} for step in (2, 4, 4)
    ]
    assert not any("state" in name for name in last.files), "what only a resumed run reads stays in the run folder"
    own_files = {name: content for name, content in last.files.items() if name.startswith("a-job/")}
    sent = {name: (tmp_path / name).read_bytes() for name in own_files if not name.endswith(("latest.json", ".jsonl"))}
    assert {name: own_files[name] for name in sent} == sent
    assert hub.visibility == {REPOSITORY: "private"}
    assert [event["step"] for event in events(tmp_path / "a-job", "output")] == [2, 4, 4]
    assert len(hub.uploads) == len(set(hub.uploads)) == 3, "two adapters and a sample, once each"
    assert [hub.offered.count(name) for name in (*ADAPTERS, "a-job/config.yaml", "README.md")] == [1, 1, 1, 1]


def test_of_a_run_that_trains_all_weights_the_whole_checkpoint_is_sent(hub: Hub, tmp_path: Path) -> None:
    assert run(settings(tmp_path / "a-job", hub), saves(4, adapter=False)) == main_diffusion.OK
    sent = hub.files(REPOSITORY)
    checkpoint = "a-job/checkpoints/step_000004"
    assert {f"{checkpoint}/state/optimizer", f"{checkpoint}/manifest.json"} <= sent.keys()
    card = sent["README.md"].decode()
    assert "load_lora_weights" not in card and "- lora" not in card
    assert "resume_from_path" in card


def test_a_readme_of_the_user_is_kept_and_a_repository_of_the_user_stays_public(hub: Hub, tmp_path: Path) -> None:
    hub.create(REPOSITORY, {"README.md": b"mine", "notes.txt": b"kept"})
    assert run(settings(tmp_path / "a-job", hub), saves(2, 4)) == main_diffusion.OK
    sent = hub.files(REPOSITORY)
    assert (sent["README.md"], sent["notes.txt"]) == (b"mine", b"kept")
    assert latest(sent)["step"] == 4
    assert hub.visibility == {REPOSITORY: "public"}


@pytest.mark.parametrize(
    ("token", "url", "message"),
    [
        ("hf_wrong", f"hf://{REPOSITORY}/a-job", "HTTP 401, the token is wrong or has expired"),
        (READER, f"hf://{REPOSITORY}/a-job", "HTTP 403, the token may not write to it"),
        (TOKEN, "hf://other/adapters/a-job", "HTTP 403, the token may not write to it, or not create it"),
        (None, f"hf://{REPOSITORY}/a-job", "there is no token: set HF_TOKEN, or run `hf auth login`"),
    ],
)
def test_a_hub_that_refuses_ends_the_run_before_it_trains(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, url: str, message: str
) -> None:
    monkeypatch.setattr(uploads, "REFUSED_SECONDS", 0.5)
    monkeypatch.setattr(uploads, "CHECK_SECONDS", 3600.0)  # so long a refusal is not repeated
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    else:
        monkeypatch.delenv("HF_TOKEN")
    if token == READER:
        hub.create(REPOSITORY)
    trained: list[int] = []
    config = settings(tmp_path / "a-job", hub, 3600, url=url)
    assert run(config, lambda run, resources: trained.append(1)) == main_diffusion.FAILURE
    assert trained == [] and hub.commits(REPOSITORY) == []
    (error,) = events(tmp_path / "a-job", "error")
    assert error["reason"] == "OutputNotSent"
    assert message in error["message"] and f"they are in {tmp_path / 'a-job'}" in error["message"]
    assert token is None or token not in error["message"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("POST /api/repos/create", 503),
        ("/preupload/", 429),
        ("/objects/batch", 500),
        ("PUT /lfs/", 500),
        (COMMIT, 500),
        (COMMIT, 429),
        (COMMIT, 412),
        ("PUT /lfs/", 403),
    ],
)
def test_a_hub_that_is_busy_gets_everything_later(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int
) -> None:
    monkeypatch.setattr(uploads, "REFUSED_SECONDS", 0.0)
    hub.faults.append(Fault(text, status))
    assert run(settings(tmp_path / "a-job", hub), saves(4)) == main_diffusion.OK
    assert hub.faults[0].times == 0
    assert not events(tmp_path / "a-job", "warning")
    assert ADAPTERS[1] in hub.files(REPOSITORY)
    assert len(hub.uploads) == 1


def test_a_commit_that_is_refused_leaves_the_older_results_whole(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "REFUSED_SECONDS", 0.2)

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        save(run, 2)
        until(lambda: len(hub.commits(REPOSITORY)) == 2)
        hub.faults.append(Fault(COMMIT, 403, times=1000))
        save(run, 4)

    config = settings(tmp_path / "a-job", hub)
    assert run(config, train) == main_diffusion.FAILURE
    assert latest(hub.files(REPOSITORY))["step"] == 2
    assert [name for name in hub.files(REPOSITORY) if "/lora/" in name] == [ADAPTERS[0]]
    warnings = [event for event in events(tmp_path / "a-job") if event.get("reason") == "OutputNotSent"]
    assert [event["event"] for event in warnings] == ["warning", "error"]
    assert events(tmp_path / "a-job")[-1]["event"] == "error", "it is not done"
    # The next attempt resumes from the last checkpoint and sends what is missing.
    hub.faults.clear()
    before = len(hub.uploads)
    assert run(config, lambda run, resources: None) == main_diffusion.OK
    assert latest(hub.files(REPOSITORY))["step"] == 4
    assert {*ADAPTERS} <= hub.files(REPOSITORY).keys()
    assert len(hub.uploads) == before, "the hub had the adapter, and it is not uploaded a second time"
    assert hub.commits(REPOSITORY)[-1].added.isdisjoint({ADAPTERS[0], "README.md", "a-job/config.yaml"})


def test_a_hub_that_hangs_does_not_hold_up_a_run_that_is_stopped(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "GRACE_SECONDS", 1.0)
    asked = threading.Event()
    released = threading.Event()

    def hang() -> None:
        asked.set()
        released.wait(60)

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        hub.faults.append(Fault(COMMIT, None, times=1000, act=hang))
        save(run, 2)
        assert asked.wait(60)
        raise type("Interrupted", (Exception,), {})("stopped")

    try:
        config = settings(tmp_path / "a-job", hub, deadline=3600)
        assert run(config, train) == main_diffusion.INTERRUPTED
    finally:
        released.set()
    warned = events(tmp_path / "a-job", "warning")
    assert {event["reason"] for event in warned} == {"OutputNotSent"}
    assert "the hub has not taken a commit in time" in warned[0]["message"]


def test_a_hub_that_does_not_answer_is_named(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHECK_SECONDS", 3.0)
    config = settings(tmp_path / "a-job", hub)
    config.trainer.store.endpoint = "http://minio:9000"  # of inputs
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert run(config, saves()) == main_diffusion.FAILURE
    (error,) = events(tmp_path / "a-job", "error")
    assert "http://127.0.0.1:9: ConnectError" in error["message"]
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    assert run(config, saves(4)) == main_diffusion.OK
    assert latest(hub.files(REPOSITORY))["step"] == 4


def test_the_program_that_sends_ends_with_the_trainer(hub: Hub, tmp_path: Path) -> None:
    asked = threading.Event()
    released = threading.Event()

    def hang() -> None:
        asked.set()
        released.wait(60)

    hub.faults.append(Fault("repos/create", None, act=hang))
    request = {"repository": REPOSITORY, "endpoint": hub.endpoint, "create": True, "title": "a", "files": []}
    with subprocess.Popen(
        [sys.executable, "-m", hub_commit.__name__],
        env=hub_commit.environment({"HF_TOKEN": TOKEN}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            assert asked.wait(60)
            process.stdin.close()
            assert process.wait(60) == 1
        finally:
            process.kill()
            released.set()


def test_offline_and_results_for_the_hub_exclude_each_other(hub: Hub, tmp_path: Path) -> None:
    config = settings(tmp_path, hub)
    for value in ("1", "true"):
        text = hub_destination.find_problem(config, {"HF_HUB_OFFLINE": value})
        assert text is not None and f"HF_HUB_OFFLINE={value}: unset it, and only the results reach the hub" in text
    for variables in ({}, {"HF_HUB_OFFLINE": ""}, {"HF_HUB_OFFLINE": "0"}):
        assert hub_destination.find_problem(config, variables) is None
    for url in (None, "s3://b/a-job"):
        config.trainer.output.url = url
        assert hub_destination.find_problem(config, {"HF_HUB_OFFLINE": "1"}) is None


def test_an_endpoint_is_that_of_the_hub_or_the_store(hub: Hub, tmp_path: Path) -> None:
    config = settings(tmp_path, hub)
    named = {"HF_ENDPOINT": "http://hub"}
    problem = hub_destination.find_problem(config, named)
    assert problem is not None and problem.endswith("the variable HF_ENDPOINT is http://hub: write one of them")
    config.data = {"train_files": ["a.jsonl", "s3://b/a.jsonl"], "val_files": None}
    problem = hub_destination.find_problem(config, {})
    assert problem is not None and f"trainer.store.endpoint: {hub.endpoint} is ambiguous" in problem
    assert hub_destination.find_problem(config, named) is None
    config.trainer.store.endpoint = None
    assert hub_destination.find_problem(config, {}) is None


def test_a_trainer_that_is_offline_refuses_to_send_to_the_hub() -> None:
    command = [
        sys.executable,
        "-m",
        "verl_omni.trainer.main_diffusion",
        "actor_rollout_ref.model.path=/none",
        "data.train_files=x.jsonl",
        "trainer.total_training_steps=1",
        f"trainer.output.url=hf://{REPOSITORY}/a-job",
    ]
    problems = {}
    for value in ("1", ""):
        ended = subprocess.run(
            command, env={**os.environ, "HF_HUB_OFFLINE": value}, capture_output=True, text=True, check=False
        )
        assert ended.returncode == main_diffusion.USAGE_ERROR
        problems[value] = ended.stderr
    assert f"hf://{REPOSITORY}/a-job is on the Hugging Face hub, and HF_HUB_OFFLINE=1: unset it" in problems["1"]
    assert "/none" in problems[""] and "HF_HUB_OFFLINE" not in problems[""]


@pytest.mark.parametrize(("value", "then"), [(None, "1"), ("", "1"), ("0", "0"), ("1", "1")])
def test_the_trainer_is_offline_unless_the_user_wants_otherwise(
    monkeypatch: pytest.MonkeyPatch, value: str | None, then: str
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "TOKENIZERS_PARALLELISM", "RAY_DEDUP_LOGS", startup.LOG_LEVEL):
        monkeypatch.setenv(name, "kept")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
    startup.prepare_environment(has_accelerator=True)
    assert os.environ["HF_HUB_OFFLINE"] == then


def test_the_page_says_what_the_adapter_is_for(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "a-job"
    folder.mkdir()
    (folder / "job.yaml").write_text("spec: {model: {base: stabilityai/stable-diffusion-3.5-medium}}\n")
    assert run(settings(folder, hub), saves(4)) == main_diffusion.OK
    _, head, text = hub.files(REPOSITORY)["README.md"].decode().split("---\n")
    assert OmegaConf.to_container(OmegaConf.create(head)) == {
        "base_model": "stabilityai/stable-diffusion-3.5-medium",
        "library_name": "diffusers",
        "pipeline_tag": "text-to-image",
        "tags": ["text-to-image", "reinforcement-learning", "lora"],
    }
    assert 'repository, run = "team/adapters", "a-job"' in text
