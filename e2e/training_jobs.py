"""Jobs that train on a cluster: the examples as tests change them, their pods, and what their runs wrote."""

import json
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e.cluster import deadlines
from e2e.cluster.api import Api

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ONE_POD = 60.0
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}}


def example(name: str, **changed: Any) -> dict[str, Any]:
    """The spec of an example; `a__b` means the field b of a."""
    spec: dict[str, Any] = YAML(typ="safe").load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))["spec"]
    for path, value in changed.items():
        *parents, last = path.split("__")
        part = spec
        for parent in parents:
            part = part.setdefault(parent, {})
        part[last] = value
    return spec


def on_two_vendors(name: str, **changed: Any) -> dict[str, Any]:
    """The spec of an example with rollout pods of their own, which run on the nodes of another device."""
    spec = example(name, **changed)
    spec["rollout"]["accelerator"] |= {"resourceName": "huawei.com/Ascend910", "rayResource": "NPU"}
    spec["rollout"]["scheduling"] = {"nodeSelector": {"pool": "ascend"}}
    # All rollout pods and the head are on one node, which has as many CPUs as this machine.
    spec["rollout"]["resources"] = {"requests": {"cpu": "100m", "memory": "2Gi"}}
    return spec


def with_judge(spec: dict[str, Any], claim: str, folder: str) -> dict[str, Any]:
    """A spec whose images a judge reads, in reward pods on the nodes of another device.

    Args:
        claim: has `judge`, a model, and `prompts.jsonl`, prompts with the text that their images must show.
        folder: where pods mount the claim.
    """
    volume = {"name": "judge", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    mount = {"name": "ray", "volumeMounts": [{"name": "judge", "mountPath": folder, "readOnly": True}]}
    template = {"spec": {"volumes": [volume], "containers": [mount]}}
    spec["trainer"]["podTemplate"] = template
    spec["data"]["train"] = [f"{folder}/prompts.jsonl"]
    spec["reward"] = {
        "scorers": [{"name": "genrm_ocr", "settings": {"max_tokens": 12}}],
        "model": {
            "base": f"{folder}/judge",
            "placement": "Separate",
            "accelerator": {
                "vendor": "Mock",
                "resourceName": "huawei.com/Ascend910",
                "rayResource": "NPU",
                "count": 1,
            },
            "resources": {"requests": {"cpu": "100m", "memory": "2Gi"}},
            "scheduling": {"nodeSelector": {"pool": "ascend"}},
            "podTemplate": template,
        },
    }
    settings = {"max_model_len": 512, "max_num_seqs": 8, "dtype": "float32"}
    spec["algorithm"]["overrides"] += [
        f"reward.reward_model.rollout.{name}={value}" for name, value in settings.items()
    ]
    return spec


def program(code: str, **changed: Any) -> dict[str, Any]:
    """The spec of a job in one attempt that runs a line of Python instead of the trainer, in small pods."""
    defaults = {
        "algorithm__entrypoint": ["python3", "-c", code],
        "algorithm__overrides": [],
        "head__resources": SMALL,
        "trainer__resources": SMALL,
        "trainer__sharedMemory": {"sizeLimit": "256Mi"},
        "checkpoint": {},
        "backoffLimit": 0,
    }
    return example("red-grpo-cluster", **defaults | changed)


def pods(api: Api, space: str, job: str, group: str) -> list[dict[str, Any]]:
    """The job's pods of a group: `headgroup`, or the worker group of a pool."""
    selector = f"diffusionrl.io/job={job},ray.io/group={group}"
    items: list[dict[str, Any]] = api.get(f"/api/v1/namespaces/{space}/pods", labelSelector=selector)["items"]
    return items


def the_pod(api: Api, space: str, job: str, group: str) -> dict[str, Any]:
    """The only pod of a group, once there is one: KubeRay replaces a deleted pod in a later pass."""
    members: list[dict[str, Any]] = []

    def one() -> bool:
        members[:] = pods(api, space, job, group)
        return len(members) == 1

    deadlines.wait_until(f"one pod in the group {group} of {job}", ONE_POD, one)
    return members[0]


def node_of(api: Api, pool: str) -> str:
    """The name of the only node with this label `pool`."""
    (node,) = api.get("/api/v1/nodes", labelSelector=f"pool={pool}")["items"]
    return str(node["metadata"]["name"])


def metrics(run: Path) -> list[dict[str, Any]]:
    """What a run wrote for each step, and for the evaluation before the first."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def events(run: Path) -> list[dict[str, Any]]:
    """The events of a run."""
    return [json.loads(line) for line in (run / "progress.jsonl").read_text(encoding="utf-8").splitlines()]


def joined(run: Path) -> list[int]:
    """The weight versions with which replicas joined after the start of the run."""
    matches = [re.match(r"replica \d+ joined with version (\d+):", event.get("text", "")) for event in events(run)]
    return [int(match[1]) for match in matches if match]
