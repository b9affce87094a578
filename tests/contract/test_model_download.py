"""The init container that downloads a model: its command, with the variables of our images, against a hub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.hub_server import TOKEN, hub_server
from omni_operator import plan
from omni_operator.api.job_loader import read_job

pytestmark = pytest.mark.slow  # the command is a program

ROOT = Path(__file__).resolve().parents[2]
IMAGES = sorted(path.parent.name for path in (ROOT / "images").glob("rollout*/Dockerfile"))
JOB = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: team/base}
  data: {train: [train.jsonl]}
  reward: {scorers: [{name: jpeg}], model: {base: team/judge}}
  trainer: {totalSteps: 3}
"""


def variables_of(image: str) -> dict[str, str]:
    """The variables that a Dockerfile sets, as far as they are plain values."""
    text = (ROOT / "images" / image / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ENV (.+)$", text, re.MULTILINE)
    return dict(pair for line in lines for pair in re.findall(r"(HF_\w+)=(\S+)", line))


@pytest.mark.parametrize("image", IMAGES)
def test_models_and_judges_are_downloaded_though_the_image_keeps_programs_offline(image: str, tmp_path: Path) -> None:
    assert variables_of(image) == {"HF_HUB_OFFLINE": "1"}
    settings = plan.ClusterSettings(image="rollout:1")
    (ray_job,) = [
        each for each in plan.render_objects(read_job(JOB, "j", ()).job, 1, settings) if each["kind"] == "RayJob"
    ]
    (trainer, *_) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    containers = {each["name"]: each for each in trainer["template"]["spec"]["initContainers"]}
    assert set(containers) == {"fetch-model", "fetch-judge"}
    with hub_server() as hub:
        for name in ("base", "judge"):
            hub.create(f"team/{name}", {"config.json": name.encode()})
            container = containers["fetch-model" if name == "base" else "fetch-judge"]
            (mount,) = container["volumeMounts"]
            own = {entry["name"]: entry["value"] for entry in container["env"]}
            words = [*container["command"], *own.values()]
            assert any(word.startswith(mount["mountPath"]) for word in words)
            program, *arguments = (word.replace(mount["mountPath"], str(tmp_path)) for word in container["command"])
            environment = {
                **os.environ, **variables_of(image), **own, "HF_HOME": str(tmp_path / "cache"),
                "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN,
            }  # fmt: skip
            done = subprocess.run(
                [str(Path(sys.executable).with_name(program)), *arguments], env=environment, capture_output=True,
                text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "team" / name / "config.json").read_text() == name
