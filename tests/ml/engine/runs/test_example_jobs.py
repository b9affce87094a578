"""Examples of released models and recipes train on a tiny model of their family, with their own settings."""

import json
import math
import pickle
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.recipes import RECIPES
from tests.ml.engine import small_jobs, small_recipes
from tests.ml.engine.shared_ray import SharedRay
from verl_omni.pipelines.registry import FAMILIES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[4] / "examples"
STEPS = 3
ENTRY_POINTS = {"main_diffusion": [], "main_diffusion_v1": ["trainer.use_v1=true"]}  # what they add to the arguments
# The trainer's settings that differ from the example's: model, resolution, batch, accelerators, length of the run, and
# a stand-in for the judge (tests/ml/engine/pools/test_pools.py has a run that serves one).
SHRUNK = {
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.pipeline.height",
    "actor_rollout_ref.rollout.pipeline.width",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "data.train_batch_size",
    "data.val_max_samples",
    "trainer.n_gpus_per_node",
    "trainer.total_training_steps",
    small_jobs.FRAMES,
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "reward.scorer_kwargs.base_url",
    "reward.scorer_kwargs.model",
    "reward.reward_functions.video.server",
    "reward.reward_model.enable",
    "reward.reward_model.model_path",
    "reward.reward_model.rollout.tensor_model_parallel_size",
}
JOBS = {
    "sd35-ocr-grpo": "sd3",
    "sd35-nft": "sd3",
    "qwen-image-ocr-grpo": "qwen_image",
    "qwen-image-full-grpo": "qwen_image",
    "qwen-image-online-dpo": "qwen_image",
    "sd35-offline-dpo": "sd3",
    "qwen-image-edit-grpo": "qwen_image_edit",
    "wan-dance-grpo": "wan",
    "wan22-5b-dance-grpo": "wan_5b",
    "wan22-a14b-dance-grpo": "wan_a14b",
}
PAIRS = {"sd35-offline-dpo": "preferences/train.parquet"}  # instead of a file of the user's


class Judge(BaseHTTPRequestHandler):
    """A judge and a reward server: its answer depends on the pixels only."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_POST(self) -> None:
        received = self.rfile.read(int(self.headers["Content-Length"]))
        if received[:1] != b"{":  # of the reference's HTTP scorer
            sample = pickle.loads(received)
            self.asked += sample["prompts"]
            self.answer(pickle.dumps({"scores": [zlib.crc32(image) / 2**32 for image in sample["images"]]}))
            return
        body = json.loads(received)
        if self.path.endswith("/chat/completions"):
            picture, question = body["messages"][0]["content"]
            self.asked.append(question["text"])
            chance = zlib.crc32(picture["image_url"]["url"].encode())
            rated = "Final Score" in question["text"]
            text = f"Final Score: {1 + chance % 401 / 100}" if rated else "FRESH BREAD Welcome Home"[chance % 24 :]
            answer: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        else:
            self.asked.append(body["prompt"])
            sample = body.get("latents") or "".join(body["frames"])
            answer = {"score": zlib.crc32(sample.encode()) / 2**32}
        self.answer(json.dumps(answer).encode())

    def answer(self, sent: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: Any) -> None:
        """The test's output stays clean."""


@pytest.fixture
def judge(shared_ray: SharedRay) -> Iterator[ThreadingHTTPServer]:
    shared_ray.begin(sorted(FAMILIES))  # its workers are forks of this process, which must have one thread
    Judge.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def small_example(name: str, model: Path, server: str) -> dict[str, Any]:
    """The document of an example, with the tiny model, and with a server that answers for its judge."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    spec = document["spec"]
    small_jobs.shrink(spec, model, trainer__totalSteps=STEPS)
    if name in PAIRS:
        spec["data"]["train"] = [PAIRS[name]]
    (scorer,) = spec["reward"]["scorers"]
    if spec["reward"].pop("model", None) or "server" not in scorer["settings"]:
        scorer["settings"] = {"model": "judge", **scorer.get("settings", {}), "base_url": f"{server}/v1"}
    else:
        scorer["settings"] |= {"server": f"{server}/score"}
    return document


def settings_of(path: Path) -> dict[str, str]:
    """The trainer's overrides of a job, by name, with the paths of the examples."""
    return dict(line.split("=", 1) for line in small_jobs.overrides_of(path, EXAMPLES, Path("/runs")))


@pytest.mark.parametrize("name", JOBS)
def test_an_example_trains_with_its_own_settings(
    name: str, shared_ray: SharedRay, judge: ThreadingHTTPServer, tmp_path: Path
) -> None:
    from verl_omni.models.tiny import MAKERS

    model = tmp_path / "model"
    MAKERS[JOBS[name]](model)
    job = tmp_path / f"{name}.yaml"
    job.write_text(yaml.safe_dump(small_example(name, model, f"http://127.0.0.1:{judge.server_address[1]}")))
    for folder in ("prompts", "rewards"):
        (tmp_path / folder).symlink_to(EXAMPLES / folder)
    if name in PAIRS:
        (tmp_path / PAIRS[name]).parent.mkdir()
        small_recipes.write_pairs(tmp_path / PAIRS[name])
    example = settings_of(EXAMPLES / f"{name}.yaml")
    shrunk = settings_of(job)
    differing = {setting for setting in example.keys() | shrunk.keys() if example.get(setting) != shrunk.get(setting)}
    assert differing <= SHRUNK | ({"data.train_files"} if name in PAIRS else set()), "everything else is the example's"

    shared_ray.train(small_jobs.overrides_of(job, tmp_path, tmp_path / "runs"))
    lines = [json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    assert [line["weights/version"] for line in lines] == list(range(STEPS + 1))
    assert all(line["actor/optimizer_steps"] > 0 for line in lines[1:])
    assert any(line["actor/grad_norm"] > 0 for line in lines[1:])
    scored = [math.isfinite(line["reward/mean"]) for line in lines[1:] if "reward/mean" in line]
    assert scored == ([] if name in PAIRS else [True] * STEPS), "pairs of a data set are not scored"
    # Training samples, two evaluations, and samples next to a training sample of each prompt of the last step.
    assert len(Judge.asked) == len(scored) * 2 * 4 + 2 * small_jobs.HELD_OUT + (2 if scored else 0)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_with_its_own_settings(
    name: str, shared_ray: SharedRay, judge: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line of the recipe, and after it what is smaller."""
    recipe = RECIPES[name]
    server = f"http://127.0.0.1:{judge.server_address[1]}"
    arguments, prompts = small_recipes.arguments(recipe, tmp_path, server, STEPS, small_jobs.HELD_OUT)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    shared_ray.train([*ENTRY_POINTS[recipe.module], *arguments])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "actor/grad_norm" in line]
    assert [line["weights/version"] for line in trained] == list(range(1, STEPS + 1))
    # The answers of a judge with random weights are all worth nothing.
    assert any(line["actor/grad_norm"] > 0 for line in trained) or name == small_recipes.SERVED
    if prompts or name == small_recipes.SERVED:
        assert all(math.isfinite(line["reward/mean"]) for line in trained)
    of_latents = "drm" in str(recipe.given)
    if prompts:
        # Each of the recipe's agent-loop workers evaluates as many: a batch is padded to a multiple of them.
        workers = int(recipe.given["actor_rollout_ref.rollout.agent.num_workers"])
        evaluated = max(small_jobs.HELD_OUT, workers) + (0 if of_latents else max(2, workers))  # the last: previews
        assert len(Judge.asked) == prompts * (STEPS * 2 * 4 + evaluated)
    if of_latents:  # latents are scored, and 1 + 0.1 * score; pictures are kept all the same
        assert all(1 <= line["reward/mean"] <= 1.1 for line in trained)
        assert len(list((tmp_path / "run").rglob("*.png"))) >= small_jobs.HELD_OUT
