"""The init container that downloads a model: its command, with the variables of our images, against a hub."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.plan.rendered_objects import groups, make_job
from e2e.hub_server import TOKEN, Hub, hub_server

pytestmark = pytest.mark.slow  # the command is a program

ROOT = Path(__file__).resolve().parents[2]
IMAGES = sorted(path.parent.name for path in (ROOT / "images").glob("rollout*/Dockerfile"))
FETCHED = {"fetch-model": "base", "fetch-judge": "judge"}


def variables_of(image: str) -> dict[str, str]:
    """The variables that a Dockerfile sets, as far as they are plain values."""
    text = (ROOT / "images" / image / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ENV (.+)$", text, re.MULTILINE)
    return dict(pair for line in lines for pair in re.findall(r"(HF_\w+)=(\S+)", line))


def downloads(*assignments: str) -> dict[str, Any]:
    """The init containers of a trainer pod, by name."""
    trainer, *_ = groups(make_job("spec.model.base=team/base", "spec.reward.model.base=team/judge", *assignments))
    return {container["name"]: container for container in trainer["template"]["spec"]["initContainers"]}


def run(container: dict[str, Any], variables: dict[str, str], folder: Path) -> str:
    """Run the container's program with its variables, with `folder` for its mount; what it writes to stderr."""
    (mount_path,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "models"]
    variables_of_container = {
        entry["name"]: entry["value"].replace(mount_path, str(folder)) for entry in container["env"]
    }
    assert str(folder) in variables_of_container["HF_HOME"]
    program, *arguments = (word.replace(mount_path, str(folder)) for word in container["command"])
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        env={**os.environ, **variables, **variables_of_container},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hub_server() as server:
        for name in FETCHED.values():
            server.create(f"team/{name}", {"config.json": name.encode()})
        yield server


@pytest.mark.parametrize("image", IMAGES)
def test_models_and_judges_are_downloaded_though_the_image_keeps_programs_offline(
    hub: Hub, image: str, tmp_path: Path
) -> None:
    assert variables_of(image) == {"HF_HUB_OFFLINE": "1"}
    containers = downloads()
    assert containers.keys() == FETCHED.keys()
    pod_variables = {**variables_of(image), "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN}
    for name, container in containers.items():
        assert run(container, pod_variables, tmp_path) == ""
        assert (tmp_path / "team" / FETCHED[name] / "config.json").read_text() == FETCHED[name]


def test_a_download_uses_the_mirror_and_the_token_of_the_pods_template(hub: Hub, tmp_path: Path) -> None:
    pod_variables = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1", "HF_HOME": "/not/writable"}
    env = [{"name": name, "value": value} for name, value in pod_variables.items()]
    template = {"spec": {"containers": [{"name": "ray", "env": env}]}}
    for name, container in downloads(f"spec.trainer.podTemplate={json.dumps(template)}").items():
        # Nothing listens at the endpoint of the image: the author's wins.
        assert run(container, {"HF_ENDPOINT": "http://127.0.0.1:9"}, tmp_path) == ""
        assert (tmp_path / "team" / FETCHED[name] / "config.json").read_text() == FETCHED[name]
