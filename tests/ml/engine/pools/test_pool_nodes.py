"""A job with two pools, as the operator renders it, on a Ray cluster with a node for each of its pods."""

import json
import re
import sys
from pathlib import Path

import pytest

from omni_operator import plan
from omni_operator.api import load_job
from tests.ml.engine import forked_program
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[3] / "examples" / "red-grpo-pools.yaml"
STEPS = 3


def test_engines_and_trainer_stay_in_their_pools_and_a_lost_node_is_replaced(tmp_path: Path) -> None:
    model = tmp_path / "model"
    prompts = tmp_path / "prompts.jsonl"
    make_tiny_sd3(model)
    prompts.write_text("".join(f'{{"prompt": "a {colour} circle"}}\n' for colour in ("red", "blue", "green", "grey")))
    job = load_job(
        EXAMPLE,
        [
            f"spec.model={{base: '{model}', lora: {{rank: 4}}}}",
            f"spec.data={{train: ['{prompts}'], promptLength: 16}}",
            f"spec.trainer.totalSteps={STEPS}",
            "spec.trainer.batch={prompts: 2}",
            "spec.rollout.samplesPerPrompt=4",
            "spec.rollout.pipeline={height: 64, width: 64, steps: 5, maxSequenceLength: 16}",
            "spec.rollout.accelerator.rayResource=NPU",
            f"spec.checkpoint.path={tmp_path}",
            "spec.algorithm.overrides=[]",
        ],
    ).job
    cluster = plan.render_attempt(job, 1, plan.ClusterSettings(image="i"))["spec"]["rayClusterSpec"]
    nodes = [
        {name: float(amount) for name, amount in group["resources"].items()}
        for group in cluster["workerGroupSpecs"]
        for _ in range(group["replicas"])
    ]
    # Accelerators of another vendor than the trainer's: only Ray's name of them is real here.
    assert [(node.get("GPU"), node.get("NPU")) for node in nodes] == [(1.0, None), (None, 1.0), (None, 1.0)]
    # The address of the RayCluster comes from the program, which starts it.
    overrides = plan.render_overrides(*plan.resolve_for_pods(job))
    places = tmp_path / "places.json"
    program = [sys.executable, str(HERE / "pool_nodes_run.py"), str(places), json.dumps(nodes)]
    code, output = forked_program.run([*program, *overrides], timeout=580)
    assert code == 0, output
    # A replica is a worker and a server. A run must not lose its agent-loop workers and its router.
    written = json.loads(places.read_text())
    at_the_start, after_the_loss = written["pools"]
    for pools in (at_the_start, after_the_loss):
        assert pools["rollout"] == ["omni_rollout"] * 4
        assert len(pools["trainer"]) > 2 and set(pools["trainer"]) == {"omni_trainer"}
    # The run has lost a node in the middle of a generation, and another one has taken its place.
    (lost,) = (line for line in output.splitlines() if line.startswith("warning: replica"))
    assert "serves no more" in lost
    # Its number is 2, or higher if a start on the lost node was tried first.
    (joined,) = re.findall(r"^replica (\d+) joined with version (\d+): ", output, re.MULTILINE)
    assert int(joined[0]) >= 2 and joined[1] == "2"
    # A drained node ends by itself when its replica has finished its samples, and before its time is over.
    assert written["drained"] == [True]
    assert output.count("has finished its samples, and is stopped") == 1
    assert "could not be managed" not in output
    lines = [json.loads(line) for line in (tmp_path / job.metadata.name / "metrics.jsonl").read_text().splitlines()]
    served = [
        (line["weights/min_replica_version"], line["weights/max_replica_version"]) for line in lines if line["step"]
    ]
    assert served == [(step, step) for step in range(1, STEPS + 1)]
