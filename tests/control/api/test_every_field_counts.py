"""No field of a job is without effect: changing it changes an object, an override, a refusal or a job fact."""

import ast
import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.crd.definition import schema
from omni_operator.api.job import Spec
from omni_operator.api.names import RENDERED_ANNOTATION, SPEC_ANNOTATION
from omni_operator.api.validation_messages import models_in
from omni_operator.cluster.cache.job_parser import parse_job_facts
from omni_operator.status.observed.job_facts import JobFacts

ROOT = Path(__file__).parents[3]
SETTINGS = plan.ClusterSettings(image="rollout:1", report_url="http://operator.ns:8090")
Path_ = tuple[str, ...]
EXCEPTIONS = {
    "managedBy": "the reconciler leaves a job of another manager alone: tests/control/operator_core",
    "rollout.engine.type": "there is one engine, which has one name",
    "rollout.updateStrategy.type": "there is one order, which has one name",
}
# Fields that are only validated: they confirm what other fields ask for.
CONFIRM = {
    "rollout.accelerator.vendor": "must be the trainer's",
    "reward.model.accelerator.vendor": "must be the trainer's",
    "reward.scorers.pool.accelerator.vendor": "must be the trainer's",
}
TOLERATIONS = [
    {"key": "gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
    {"key": "spot", "operator": "Exists"},
]
MACHINES: dict[str, Any] = {
    "accelerator": {
        "vendor": "Mock",
        "count": 2,
        "resourceName": "a.b/c",
        "runtimeClassName": "rc",
        "preset": "Atlas-A2",
        "rayResource": "GPU",
    },
    "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}},
    "sharedMemory": {"sizeLimit": "3Gi"},
}
FULL: dict[str, Any] = {
    "model": {
        "base": "owner/name",
        "revision": "main",
        "tokenSecretRef": {"name": "hf", "key": "token"},
        "cache": {"claimName": "models"},
        "lora": {"enabled": True, "startFrom": "sft", "rank": 8, "alpha": 16, "targetModules": ["attn.to_q"]},
    },
    "data": {"train": ["train.jsonl"], "validation": ["val.jsonl"], "promptLength": 12},
    "reward": {
        "maxFailedShare": 0.25,
        "earlyStoppingPatience": 3,
        "replicas": 2,
        "model": {"base": "owner/judge", "placement": "Colocated", "replicas": 1, "tensorParallelSize": 2},
        "scorers": [
            {"name": "red", "builtin": "color", "weight": 2.0, "required": True, "settings": {"color": "red"}},
            {"name": "mine", "function": {"path": "r.py", "name": "score"}},
            {
                "name": "judge",
                "http": {
                    "url": "http://judge:80/",
                    "timeoutSeconds": 5.0,
                    "attempts": 2,
                    "batched": True,
                    "retryBackoffSeconds": 2.0,
                    "protocol": "JSON",
                },
            },
            {"name": "server", "http": {"url": "http://server:80/", "protocol": "Pickle"}, "use": "Training"},
            {"name": "brightness", "use": "Evaluation"},
        ],
    },
    "trainer": {
        "replicas": 2,
        "totalSteps": 9,
        "learningRate": 0.001,
        "precision": "bfloat16",
        "evalEverySteps": 4,
        **MACHINES,
        "batch": {"prompts": 8, "miniBatchPrompts": 4, "microBatchSamples": 2},
        "podTemplate": {"spec": {"hostNetwork": True}},
    },
    "algorithm": {"name": "FlowGRPO", "entrypoint": ["python3", "-m", "mine"], "overrides": ["data.shuffle=false"]},
    "rollout": {
        "placement": "Colocated",
        "replicas": 4,
        "samplesPerPrompt": 8,
        "engine": {
            "type": "vLLMOmni",
            "tensorParallelSize": 1,
            "dtype": "bfloat16",
            "maxBatchSize": 8,
            "maxConcurrentRequests": 16,
            "promptCache": True,
            "offloadTextEncoders": True,
        },
        "agentLoop": {"workers": 2},
        "pipeline": {"height": 64, "width": 64, "steps": 9, "guidance": 2.0, "maxSequenceLength": 12},
        "sampler": {
            "type": "cps",
            "noiseLevel": 0.5,
            "window": {"size": 2, "start": 1, "end": 5, "placement": "Random", "stepsPerPlace": 3},
        },
        "staleness": {"maxVersions": 3, "maxSeconds": 60},
    },
    "checkpoint": {
        "everySteps": 3,
        "keep": 2,
        "adapterEverySteps": 0,
        "keepAdapters": 4,
        "resume": "Auto",
        "claimName": "runs",
        "path": "/runs",
    },
    "output": {"url": "s3://bucket/runs", "deadlineSeconds": 60},
    "storage": {"endpoint": "http://minio:9000", "region": "eu", "secretName": "store"},
    "seed": 3,
    "suspend": False,
    "managedBy": "diffusionrl.io/operator",
    "activeDeadlineSeconds": 600,
    "preRunningDeadlineSeconds": 60,
    "backoffLimit": 1,
    "disruptionLimit": 3,
    "failurePolicy": {"rules": [{"onReasons": ["HeadLost"], "action": "Fail"}]},
    "suspendPolicy": {"mode": "CheckpointThenSuspend", "graceSeconds": 30},
    "ttlSecondsAfterFinished": 60,
    "cleanupPolicy": "DeleteCluster",
    "runtime": {
        "image": "own:1",
        "imagePullPolicy": "Always",
        "rayVersion": "2.55.0",
        "serviceAccountName": "sa",
        "imagePullSecrets": [{"name": "regcred"}],
        "workingDir": "/opt/x",
    },
    "head": {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "3Gi"}}, "podTemplate": {"spec": {}}},
    "scheduling": {
        "schedulerName": "kai",
        "priorityClassName": "high",
        "nodeSelector": {"zone": "a"},
        "tolerations": TOLERATIONS,
        "topology": {"required": "rack"},
        "voluntaryDisruptions": "Block",
    },
    "security": {"rayAuth": "Token", "networkPolicy": "DefaultDeny"},
    "observability": {
        "podMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "p"}},
        "tracking": {
            "loggers": ["wandb"],
            "project": "p",
            "wandbSecretRef": {"name": "wandb", "key": "key"},
            "images": 3,
        },
    },
}
# Fields that exclude others of FULL.
POOL: dict[str, Any] = {
    **MACHINES,
    "scheduling": {"nodeSelector": {"zone": "a"}, "topology": {"required": "rack"}, "tolerations": TOLERATIONS},
    "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"hostNetwork": True}},
}
OTHER = {
    "scheduling": {"topology": {"preferred": "rack"}},
    "output": {"url": "file:///results", "claimName": "results"},
    "data": {"train": ["s3://bucket/train.jsonl"]},
    "reward": {
        "model": {
            "base": "judge",
            "placement": "Separate",
            "replicas": 2,
            "tensorParallelSize": 1,
            **POOL,
            "updateStrategy": {"maxUnavailable": 2, "progressDeadlineSeconds": 60},
            "autoscaling": {"minReplicas": 2, "maxReplicas": 6, "requestsPerReplica": 32, "stabilizationSeconds": 60},
        }
    },
    "rollout": {
        "placement": "Separate",
        "replicas": 4,
        "minReplicas": 2,
        "drainSeconds": 30,
        "batchesAhead": 2,
        **POOL,
        "updateStrategy": {"type": "RollingByWeightVersion", "maxUnavailable": 2, "progressDeadlineSeconds": 60},
        "autoscaling": {"minReplicas": 3, "maxReplicas": 6, "samplesPerReplica": 32, "stabilizationSeconds": 60},
    },
}
# Values that cannot be derived from the schema.
VALUES: dict[str, list[Any]] = {
    "reward.scorers.settings": [{"color": "blue"}],
    "storage.endpoint": ["http://other:9000"],
    "algorithm.overrides": [["data.shuffle=true"]],
    "trainer.podTemplate": [{"spec": {"hostNetwork": True, "priority": 3}}],
    "head.podTemplate": [{"spec": {"priority": 3}}],
    "rollout.podTemplate": [{"spec": {"hostNetwork": True, "priority": 3}}],
    "reward.model.podTemplate": [{"spec": {"hostNetwork": True, "priority": 3}}],
    "reward.scorers.pool.podTemplate": [{"spec": {"hostNetwork": True, "priority": 3}}],
    "trainer.batch.prompts": [4, 16],
    "trainer.batch.miniBatchPrompts": [8],
    "failurePolicy.rules.onReasons": [["WorkerLost"]],
}
# Fields that change together, or a rule between them refuses the job.
TOGETHER: dict[str, dict[str, Any]] = {
    "trainer.replicas": {"trainer.replicas": 1, "rollout.replicas": 2},
    "rollout.placement": {"rollout.placement": "Separate"},
    "reward.model.placement": {"reward.model.placement": "Separate"},
    "trainer.accelerator.count": {"trainer.accelerator.count": 1, "rollout.replicas": 2},
    "rollout.engine.tensorParallelSize": {"rollout.engine.tensorParallelSize": 4, "rollout.replicas": 1},
    "rollout.engine.promptCache": {"rollout.engine.promptCache": False, "rollout.engine.offloadTextEncoders": False},
    "reward.scorers.builtin": {"reward.scorers.settings": {}, "reward.scorers.builtin": "brightness"},
}
SPEC_SCHEMA = schema()["properties"]["spec"]
QUANTITY = "(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"


def document(spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "a-job", "namespace": "ns", "uid": "u"}
    return {"apiVersion": "diffusionrl.io/v1alpha1", "kind": "DiffusionRLJob", "metadata": metadata, "spec": spec}


def other() -> dict[str, Any]:
    job = copy.deepcopy(FULL)
    for name, part in OTHER.items():
        job[name] |= copy.deepcopy(part)
    job["reward"]["scorers"][0]["pool"] = {"replicas": 2, "python": "env/bin/python", **copy.deepcopy(POOL)}
    del job["observability"]["tracking"]
    del job["model"]["lora"]["startFrom"]
    return job


def preferred() -> dict[str, Any]:
    job = other()
    for pool in (job["rollout"], job["reward"]["model"], job["reward"]["scorers"][0]["pool"]):
        pool["scheduling"]["topology"] = {"preferred": "rack"}
    return job


def effects(spec: dict[str, Any]) -> str:
    """Everything derived from a job, without copies of the job itself."""
    body = document(spec)
    job = DiffusionRLJob.model_validate(body)
    bodies = plan.render_objects(job, 1, SETTINGS)
    for rendered in bodies:
        rendered["metadata"]["annotations"].pop(RENDERED_ANNOTATION)
        rendered["metadata"]["annotations"].pop(SPEC_ANNOTATION, None)
        rendered.get("data", {}).pop("job.yaml", None)
    local = plan.render_command(job, plan.local_layout(job, "/runs"))
    judged = [(finding.at, finding.text) for finding in (*plan.find_refusals(job, SETTINGS), *plan.find_warnings(job))]
    return json.dumps([bodies, local, judged, str(parse_job_facts(body, job))], sort_keys=True)


def leaves(model: type[BaseModel], path: Path_ = ()) -> Iterator[Path_]:
    for name, info in model.model_fields.items():
        field_path = (*path, info.alias or name)
        inner = next(models_in(info.annotation), None)
        if inner:
            yield from leaves(inner, field_path)
        else:
            yield field_path


LEAVES = list(leaves(Spec))
BEFORE = [(job, effects(job)) for job in (FULL, other(), preferred())]


def nodes_at(spec: Any, path: Path_) -> Iterator[tuple[dict[str, Any], str]]:
    """All mappings of the job with the leaf; lists may have several."""
    if isinstance(spec, list):
        for item in spec:
            yield from nodes_at(item, path)
    elif len(path) == 1:
        if path[0] in spec:
            yield spec, path[0]
    elif path[0] in spec:
        yield from nodes_at(spec[path[0]], path[1:])


def schema_at(path: Path_) -> dict[str, Any]:
    node = SPEC_SCHEMA
    for step in path:
        node = node.get("items", node)["properties"][step]
    return node


def values(path: Path_, now: Any) -> Iterator[Any]:
    """Other values that the leaf's own schema allows."""
    yield from VALUES.get(".".join(path), ())
    node = schema_at(path)
    match node.get("type"):
        case "boolean":
            yield not now
        case "integer" | "number":
            step = node.get("multipleOf", 1)
            wanted = (now + step, now - step, now * 2, now / 2 if node["type"] == "number" else now // 2)
            yield from (value for value in wanted if node["minimum"] <= value <= node["maximum"] and value)
        case "string" if "enum" in node:
            yield from (value for value in node["enum"] if value != now)
        case "string" if node.get("pattern", "").endswith(QUANTITY):
            yield "4Gi"
        case "string" if "interval" in path:
            yield "7s"
        case "string" if "rayVersion" in path:
            yield "2.60.0"
        case "string":
            yield f"{now}x"
        case "array" if "enum" in node["items"]:
            yield ["console", *now]
        case "array":
            yield [*now, f"{now[0]}x"]
        case "object":
            yield {**now, "ephemeral-storage": "1"}


def test_the_jobs_of_this_test_have_every_field() -> None:
    assert len(LEAVES) > 100
    assert [
        path for path in LEAVES if not any(list(nodes_at(spec, path)) for spec in (FULL, other(), preferred()))
    ] == []


def variants(job: dict[str, Any], path: Path_) -> Iterator[dict[str, Any]]:
    """The job with another value of one leaf."""
    if changes := TOGETHER.get(".".join(path)):
        changed = copy.deepcopy(job)
        for name, value in changes.items():
            node, key = next(nodes_at(changed, tuple(name.split("."))))
            node[key] = value
        yield changed
    for number, (holder, leaf) in enumerate(nodes_at(job, path)):
        for value in values(path, holder[leaf]):
            changed = copy.deepcopy(job)
            node, key = list(nodes_at(changed, path))[number]
            node[key] = value
            yield changed


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_changing_a_field_changes_the_result(path: Path_) -> None:
    name = ".".join(path)
    refused = False
    if name in EXCEPTIONS:
        assert EXCEPTIONS[name]
        return
    for job, before in BEFORE:
        for changed in variants(job, path):
            try:
                if effects(changed) != before:
                    return
            except ValidationError:
                refused = True
    assert refused and name in CONFIRM, f"spec.{name}: no other value changes anything"


def test_every_job_fact_is_read() -> None:
    read = set()
    for file in (ROOT / "operator" / "omni_operator").rglob("*.py"):
        if file.name != "job_parser.py":
            tree = ast.parse(file.read_text(encoding="utf-8"))
            read |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and "facts" in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))
            }
    facts = {field.name for field in dataclasses.fields(JobFacts)}
    assert facts - read == set()


# Fields that make no difference to the attempts of these jobs, but to others, so that the digest of a spec has them.
ONLY_TOGETHER = {
    f"{pool}.accelerator.preset" for pool in ("trainer", "rollout", "reward.model", "reward.scorers.pool")
}  # with Ascend


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_the_digest_of_a_spec_changes_with_what_its_attempt_is_made_of_and_with_nothing_else(path: Path_) -> None:
    name = ".".join(path)
    for before, _ in BEFORE:
        job = DiffusionRLJob.model_validate(document(before))
        rendered = plan.digest_attempt(job, 1, SETTINGS)
        made_of = plan.digest_spec(job)
        for changed in variants(before, path):
            try:
                other_job = DiffusionRLJob.model_validate(document(changed))
            except ValidationError:
                continue
            same = plan.digest_attempt(other_job, 1, SETTINGS) == rendered
            same_spec = plan.digest_spec(other_job) == made_of
            assert same_spec <= same, f"spec.{name}: the attempt is another one"
            assert same_spec == same or name in ONLY_TOGETHER, f"spec.{name}: the attempt is the same"
