"""Jobs on the real engine: a reward that compares the samples of a prompt, held-out scorers, scorers with a pool."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from omni_operator import plan
from omni_operator.api import load_job
from tests.ml.engine.shared_ray import SharedRay
from tests.ml.trainer.rewards.test_scorer_pools import make_environment
from verl_omni.trainer.report.page import render
from verl_omni.trainer.report.run_data import load

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[4] / "examples"
SCORERS = """
def redness(image):
    means = image.float().mean(dim=(-2, -1)) / 255
    return float(means[0] - (means[1] + means[2]) / 2)

def rank(data_sources, solution_images, ground_truths, extra_infos, groups):
    scores = [redness(image) for image in solution_images]
    found = []
    for score, group in zip(scores, groups):
        others = [other for other, name in zip(scores, groups) if name == group]
        assert len({info["prompt"] for info, name in zip(extra_infos, groups) if name == group}) == 1
        found.append({"score": sum(other < score for other in others) / max(len(others) - 1, 1), "n": len(others)})
    return found

def red(data_source, solution_image, ground_truth, extra_info):
    return redness(solution_image)

def broken(data_source, solution_image, ground_truth, extra_info):
    raise OSError("no such model")
"""


def train(shared_ray: SharedRay, folder: Path, scorers: Sequence[Mapping[str, Any]], steps: int) -> tuple[Path, int]:
    """Train the example with scorers; the run folder, and the samples of a prompt."""
    settings = [
        f"spec.reward={json.dumps({'scorers': scorers, 'replicas': 2})}",
        f"spec.algorithm={json.dumps({'name': 'FlowGRPO', 'overrides': ['data.val_max_samples=8']})}",
        "spec.trainer.evalEverySteps=0",
        f"spec.trainer.totalSteps={steps}",
        "spec.checkpoint.everySteps=0",
    ]
    job = plan.resolve_paths(load_job(EXAMPLES / "red-grpo.yaml", settings).job, str(EXAMPLES))
    shared_ray.train(plan.render_overrides(job, plan.local_layout(job, str(folder))))
    return folder / "red-grpo", job.spec.rollout.samples_per_prompt


def test_ranks_of_a_prompts_samples_are_trained_on_and_held_out_scorers_are_only_shown(
    shared_ray: SharedRay, tmp_path: Path
) -> None:
    (tmp_path / "scorers.py").write_text(SCORERS)
    scorers = [
        {"name": name, "function": {"path": str(tmp_path / "scorers.py"), "name": name}, "use": use}
        for name, use in (("rank", "Training"), ("red", "Evaluation"), ("broken", "Evaluation"))
    ]
    folder, samples = train(shared_ray, tmp_path, scorers, steps=2)
    before, first, last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for step in (first, last):
        assert step["reward/reward/rank/n/mean"] == samples, "each call has whole groups"
        # Ranks of n different samples are 0, 1/(n-1), ..., 1.
        assert step["reward/mean"] == pytest.approx(0.5, abs=0.05)
        assert step["actor/grad_norm"] > 0
        assert not any("/red/" in name or "/broken/" in name for name in step if name.startswith("reward/"))
    for evaluation in (before, last):
        assert evaluation["val/reward/rank/n/mean"] == 1
        assert -1 < evaluation["val/reward/red/mean"] < 1 and evaluation["val/reward/red/stderr"] > 0
        assert "val/reward/broken/mean" not in evaluation and evaluation["val/n"] == 8
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    (warning,) = [event for event in events if event.get("reason") == "SamplesNotScored"]
    assert "reward 'broken' failed: OSError: no such model" in warning["message"]
    page = render(load(folder))
    assert "Held-out scorers" in page and r"held-out reward\u002fred" in page


POOLED = """
import tinydep

def red(data_source, solution_image, ground_truth, extra_info):
    means = solution_image.float().mean(dim=(-2, -1)) / 255
    return {"score": float(means[0] - (means[1] + means[2]) / 2), "version": float(tinydep.VERSION)}
"""


def test_scorers_with_pools_train_a_model_as_without(shared_ray: SharedRay, tmp_path: Path) -> None:
    """Two functions whose packages conflict, which the trainer does not have, and a scorer in the reward workers."""
    (tmp_path / "pooled.py").write_text(POOLED)
    function = {"path": str(tmp_path / "pooled.py"), "name": "red"}
    scorers = [
        {"name": name, "function": function, "pool": {"python": str(make_environment(tmp_path, version))}}
        for name, version in (("old", "1.0"), ("new", "2.0"))
    ]
    scorers.append({"name": "color", "settings": {"color": "red"}})
    folder, _ = train(shared_ray, tmp_path, scorers, steps=1)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    step = lines[1]
    assert step["reward/reward/old/version/mean"] == 1 and step["reward/reward/new/version/mean"] == 2
    assert step["reward/reward/old/mean"] == pytest.approx(step["reward/reward/color/mean"], abs=1e-5)
    assert step["reward/mean"] == pytest.approx(step["reward/reward/color/mean"], abs=1e-5)
    assert step["actor/grad_norm"] > 0
    assert lines[-1]["val/reward/new/version/mean"] == 2
