"""Jobs on both sides of each rule: the smallest one, and changes of it.

A test gives each to the models and to an API server and compares the two verdicts; `VERDICTS_DIFFER` lists where they
may differ, and these documents stay away from there.
"""

import copy
from collections.abc import Iterable
from typing import Any

from omni_operator.api.labels import ANNOTATIONS_BYTES

Document = dict[str, Any]
Change = dict[str, Any]

# Checks of the models that a CRD cannot express; the operator reports them in a condition.
VERDICTS_DIFFER = {
    "spec.reward.scorers[].settings": "keys, and values of several types",
    "spec.reward.scorers[].name and builtin": "scorers of installed packages, which the CRD does not know",
    "spec.algorithm.overrides": "names of the trainer's settings are a list that the CRD does not have",
    "podTemplate": "fields of pods that the CRD does not have",
    "metadata.generateName": "the API server makes a name of it; drl needs metadata.name",
    "metadata.namespace": "only a cluster knows whether it exists",
    "status": "the API server drops it at a creation, after a look for unknown fields",
}
SMALLEST: Document = {
    "apiVersion": "diffusionrl.io/v1alpha1",
    "kind": "DiffusionRLJob",
    "metadata": {"name": "a-job"},
    "spec": {
        "model": {"base": "./model"},
        "data": {"train": ["train.jsonl"]},
        "reward": {"scorers": [{"name": "jpeg"}]},
        "trainer": {"totalSteps": 3},
    },
}
OWN_JUDGE = {"base": "owner/judge", "placement": "Separate"}
FOR_JUDGES = {"maxReplicas": 2, "requestsPerReplica": 8}
FOR_ROLLOUTS = {"maxReplicas": 2, "samplesPerReplica": 8}
# Fields that appear together in rules, with values near their limits, which independent draws would rarely combine.
TOGETHER: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("trainer.replicas", (1, 2, 3)),
    (
        "trainer.accelerator",
        (
            {},
            {"count": 2},
            {"vendor": "CPU", "resourceName": "a.b/c"},
            {"resourceName": "a.b/c"},
            {"vendor": "Mock", "resourceName": "a.b/c", "preset": "Atlas-A2"},
            {"vendor": "NVIDIA", "preset": "Atlas-A2"},
            {"vendor": "Ascend", "preset": "Atlas-A3"},
        ),
    ),
    ("trainer.batch", ({"prompts": 4}, {"prompts": 8, "miniBatchPrompts": 3}, {"prompts": 6, "miniBatchPrompts": 3})),
    (
        "trainer.podTemplate",
        (
            {"spec": {"hostNetwork": True}},
            {"spec": {"hostPID": False, "hostname": None}},
            {"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}},
            {"spec": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a"}]}},
            {"spec": {"containers": [{"name": "ray", "securityContext": {"privileged": True}}]}},
            {"spec": {"containers": [{"name": "ray", "env": [{"name": "A", "value": "1"}], "image": None}]}},
            {"spec": {"containers": [{"image": "x"}]}},
            {"spec": "x"},
            {"metadata": {"labels": {"a": 1}}},
            {"spec": None},
            {"spec": {"priority": 3}},
        ),
    ),
    (
        "head.podTemplate",
        (
            {"metadata": {"namespace": "kube-system"}},
            {"metadata": {"name": "a", "labels": {"a": "b"}}},
            {"metadata": {"labels": {"diffusionrl.io/job": "other"}}},
            {"metadata": {"finalizers": []}},
            {"metadata": {"annotations": {"ray.io/a": "b"}}},
        ),
    ),
    ("rollout.replicas", (1, 2, 3)),
    ("rollout.minReplicas", (1,)),
    ("rollout.drainSeconds", (0, 30, 3601)),
    ("rollout.placement", ("Colocated", "Separate", "Mixed")),
    ("rollout.batchesAhead", (0, 1, 7, 8, -1, 1.5)),
    ("rollout.accelerator", ({}, {"count": 2}, {"vendor": "Ascend"}, {"vendor": "CPU", "resourceName": "a.b/c"})),
    ("rollout.resources", ({"requests": {"cpu": "1"}}, {"limits": {"a b": "1"}})),
    ("rollout.sharedMemory", ({}, {"sizeLimit": "1Gi"})),
    (
        "rollout.scheduling",
        ({}, {"nodeSelector": {"a b": "1"}}, {"topology": {"required": "rack", "preferred": "rack"}}),
    ),
    ("rollout.podTemplate", ({}, {"spec": {"hostNetwork": True}}, {"metadata": {"labels": {"ray.io/a": "b"}}})),
    (
        "rollout.autoscaling",
        (
            {"enabled": True},
            {"maxReplicas": 2},
            FOR_ROLLOUTS,
            {"minReplicas": 3, "maxReplicas": 2, "samplesPerReplica": 8},
        ),
    ),
    (
        "reward.model",
        (
            {"base": "owner/judge", "replicas": 2},
            {"base": "owner/judge", "autoscaling": FOR_JUDGES},
            OWN_JUDGE,
            {**OWN_JUDGE, "autoscaling": FOR_JUDGES},
            {**OWN_JUDGE, "autoscaling": FOR_JUDGES, "replicas": 3},
            {**OWN_JUDGE, "autoscaling": {**FOR_JUDGES, "minReplicas": 3}, "replicas": 3},
            {**OWN_JUDGE, "autoscaling": {"maxReplicas": 2, "samplesPerReplica": 8}},
            {**OWN_JUDGE, "autoscaling": {**FOR_JUDGES, "stabilizationSeconds": 3601}},
        ),
    ),
    ("rollout.updateStrategy", ({}, {"maxUnavailable": 0}, {"maxUnavailable": 2, "type": "Recreate"})),
    ("rollout.engine", ({"tensorParallelSize": 2}, {"type": "SGLang"})),
    ("rollout.agentLoop.workers", (1, 2, 3)),
    ("rollout.samplesPerPrompt", (1, 2, 8)),
    ("rollout.pipeline.steps", (1, 2, 10)),
    ("rollout.sampler.noiseLevel", (0, 0.5)),
    ("rollout.sampler.window", ({"size": 1, "end": 1}, {"size": 4, "end": 3}, {"size": 2, "start": 8, "end": 11})),
    ("model.lora.enabled", (True, False)),
    ("model.lora.startFrom", ("./sft", "~/sft", "s3://b/sft")),
    ("model.lora.targetModules", (["all-linear"], ["all-linear", "to_q"], ["to_q"], [])),
    ("model.base", ("~/model", "Qwen/Qwen-Image", "s3://b/model", "s3://b", "gs://b/model", "s3:///model")),
    (
        "data",
        (
            {"train": ["s3://b/a.jsonl"]},
            {"train": ["a.jsonl"], "validation": ["a.jsonl", "hf://b"]},
            {"train": ["a.jsonl"], "validation": ["s3://b/a.jsonl"]},
            {"train": ["a.jsonl", "s3://b"]},
        ),
    ),
    (
        "output",
        (
            {},
            *({"url": url, "claimName": "c"} for url in ("file:///a", "s3://b", "hf://a/b")),
            *({"url": url} for url in ("s3://b", "s3://b/a/c", "s3://", "s3://b/?x=1")),
            *({"url": url} for url in ("file:///a", "file://a/b", "file:////", "/a")),
            *({"url": f"hf://{path}"} for path in ("a/b", "a.b/c-d_e/runs/x.y/", "a", "a/b@main", "a/b--c")),
            *({"url": f"hf://{path}"} for path in ("a/b/../c", "a/b//c", "datasets/a/b", "models/a")),
        ),
    ),
    ("storage", ({}, {"secretName": "s"}, {"endpoint": "http://h:9000"}, {"endpoint": "h:9000"}, {"region": "eu-1"})),
    (
        "algorithm",
        (
            {"name": "Custom"},
            {"overrides": ["actor_rollout_ref.actor.optim.lr_warmup_steps=1", "++data.shuffle=false"]},
            {"overrides": ["trainer.seed=1"]},
            {"overrides": ["+++a=1"]},
            {"overrides": ["trainer=1"]},
            {"entrypoint": ["my-trainer"], "overrides": ["any.name=1"]},
            {"overrides": ["++reward.scorer_kwargs.x=1"]},
            {"overrides": ["a"]},
            {"overrides": ["=a"]},
        ),
    ),
    ("backoffLimit", (0, 1)),
    ("checkpoint", ({"claimName": "runs"}, {"everySteps": 0})),
    ("runtime", ({"image": "a"}, {"image": "a", "rayVersion": "2.60.0"}, {"rayVersion": "2"})),
    ("data.validation", ([], ["held-out.jsonl"])),
    (
        "reward.scorers",
        (
            [{"name": "jpeg", "weight": 0}],
            [{"name": "jpeg"}, {"name": "shapes", "use": "Evaluation"}],
            [{"name": "jpeg", "use": "Evaluation", "weight": 0.5}],
            [{"name": "jpeg"}, {"name": "shapes", "use": "Evaluation", "required": False}],
            [{"name": "jpeg"}, {"name": "jpeg"}],
            [],
            [{"name": "x", "http": {"url": "http://h:99999/"}}],
            [{"name": "x", "http": {"url": "http://h:65535?a"}}],
            [{"name": "x", "function": {"path": "r.py"}, "settings": {"color": "red", "more": [1, 2.5, True]}}],
            [{"name": "x", "function": {"path": "s3://b/r.py"}}],
            [{"name": "x", "function": {"path": "pkg://r"}}],
            [{"name": "x", "function": {"path": "r.py"}, "http": {"url": "http://h"}}],
            [{"name": "x", "builtin": "jpeg"}],
            [{"name": "jpeg", "pool": {}}],
            [{"name": "jpeg", "pool": {"python": "~/env/bin/python"}}],
            [{"name": "jpeg", "pool": {"accelerator": {"count": 2}}}],
            [{"name": "jpeg", "pool": {"accelerator": {"vendor": "Mock"}}}],
            [{"name": "x" * 41, "builtin": "jpeg", "pool": {}}],
            [{"name": "x_", "builtin": "jpeg", "pool": {}}],
            [{"name": "x", "http": {"url": "http://h"}, "pool": {}}],
        ),
    ),
    ("head.podTemplate", ({"spec": {"initContainers": [{"name": "a", "securityContext": {"privileged": True}}]}},)),
    ("head.resources", ({"limits": {"a b": "1"}}, {"requests": {"cpu": "1", "x.y/z": "2"}}, {"requests": {"-": "1"}})),
    ("trainer.resources", ({"limits": {"a b": "1"}}, {"requests": {"c d": "1"}}, {"limits": {"memory": "1GB"}})),
    ("scheduling.nodeSelector", ({"a b": "1"}, {"a.b/c": "d"}, {"a": "b c"}, {"a": None})),
    (
        "observability.tracking",
        (
            {"loggers": ["wandb"], "wandbSecretRef": {"name": "a", "key": "b"}},
            {"wandbSecretRef": {"name": "a", "key": "b"}},
            {"project": "p"},
            {"loggers": ["console"], "project": "p"},
            {"loggers": ["mlflow"]},
            {"loggers": ["clearml"]},
            {"loggers": ["console"], "images": 2},
            {"loggers": ["tensorboard"], "images": 0},
        ),
    ),
    ("observability.podMonitor.labels", ({"a b": "1"}, {"release": "p"})),
    ("scheduling.topology", ({"required": "rack"}, {"required": "rack", "preferred": "a.b/zone"})),
    (
        "scheduling.tolerations",
        (
            [{"key": "a"}, {"key": "a"}],
            [{"operator": "Equal", "value": "-"}],
            [{"key": "a", "operator": "Equal", "value": "b"}],
            [{"key": "a", "value": "b"}],
            [{"operator": "Equal", "value": "b"}],
        ),
    ),
)
# Changes of a job with rollout pods.
WITH_ROLLOUT_PODS: tuple[Change, ...] = (
    {"rollout.replicas": 3},
    {"rollout.batchesAhead": 1},
    {"rollout.drainSeconds": 0},
    {"rollout.autoscaling": FOR_ROLLOUTS},
    {"rollout.updateStrategy": {"maxUnavailable": 2, "progressDeadlineSeconds": 60}},
    {"rollout.replicas": 3, "rollout.autoscaling": FOR_ROLLOUTS},
    {"rollout.replicas": 2, "rollout.minReplicas": 2, "rollout.autoscaling": FOR_ROLLOUTS},
    {"rollout.autoscaling": {"minReplicas": 2, "maxReplicas": 3, "samplesPerReplica": 8, "stabilizationSeconds": 9}},
    {"rollout.accelerator": {}, "rollout.resources": {}, "rollout.podTemplate": {}},
    {"rollout.scheduling": {"topology": {"required": "rack"}}},
    {"rollout.engine": {"tensorParallelSize": 2}},
    {"rollout.engine": {"tensorParallelSize": 2}, "rollout.accelerator": {"count": 4}},
    {"rollout.accelerator": {"vendor": "NVIDIA"}},
    {"trainer.accelerator": {"vendor": "NVIDIA"}},
    {"trainer.accelerator": {"vendor": "NVIDIA"}, "rollout.accelerator": {}},
    {"trainer.accelerator": {"vendor": "NVIDIA"}, "rollout.accelerator": {"vendor": "Ascend"}},
    {
        "trainer.accelerator": {"vendor": "NVIDIA"},
        "rollout.accelerator": {"vendor": "NVIDIA", "count": 4, "preset": "NVIDIA"},
    },
    {"security.rayAuth": "Disabled"},
)
# Combinations of changes that a rule refuses or accepts together.
SETS: tuple[dict[str, Any], ...] = (
    {"model.lora.enabled": False, "algorithm.name": "DiffusionNFT"},
    {"model.base": "a/b", "model.revision": "main", "model.cache": {"claimName": "c"}},
    {"model.base": "./a/b", "model.revision": "main"},
    {"model.base": "s3://b/m", "model.cache": {"claimName": "c"}, "storage": {"secretName": "s"}},
    {"model.base": "s3://b/m", "model.revision": "main"},
    {"output": {"url": "s3://b"}, "storage": {"secretName": "s", "endpoint": "https://h/a"}},
    {"output": {"url": "file:///b"}, "storage": {"secretName": "s"}},
    {"output": {"url": "hf://a/b"}, "storage": {"secretName": "s", "endpoint": "https://h"}},
    {"output": {"url": "hf://a/b"}, "storage": {"secretName": "s", "region": "eu-1"}},
    {"output": {"url": "hf://a/b"}, "storage": {"region": "eu-1"}, "model.base": "s3://b/m"},
    {"output": {"url": "hf://a/b"}, "storage": {"endpoint": "https://h"}, "model.base": "s3://b/m"},
    {"output": {"url": "hf://a/b"}, "storage": {"endpoint": "https://h"}, "data": {"train": ["s3://b/a.jsonl"]}},
    {"data": {"train": ["a", "s3://b/a.jsonl"]}, "storage": {"region": "eu-1"}},
    {"trainer.replicas": 3, "rollout.replicas": 3},
    {"trainer.replicas": 2, "rollout.replicas": 2},
    *({"rollout.placement": "Separate", **change} for change in WITH_ROLLOUT_PODS),
    {"rollout.sampler.window": {"size": 1, "end": 1}, "rollout.pipeline.steps": 1},
    {"algorithm.name": "Custom", "rollout.samplesPerPrompt": 1},
    {"algorithm.name": "DiffusionNFT", "rollout.samplesPerPrompt": 1},
    {"algorithm.name": "DiffusionNFT", "rollout.sampler.noiseLevel": 0},
    {"algorithm.name": "DiffusionDPO", "trainer.replicas": 3, "rollout.replicas": 3, "trainer.batch.prompts": 9},
    {"algorithm.name": "DiffusionDPO", "trainer.replicas": 2, "rollout.replicas": 2, "trainer.batch.prompts": 5},
    {
        "algorithm": {
            "name": "Custom",
            "overrides": [
                "actor_rollout_ref.actor.diffusion_loss.loss_mode=mine",
                "actor_rollout_ref.actor.diffusion_loss.scale=2",
                "actor_rollout_ref.model.algorithm=mine",
                "++algorithm.adv_estimator=mine",
            ],
        }
    },
    {"algorithm": {"name": "Custom", "overrides": ["actor_rollout_ref.actor.diffusion_loss={loss_mode: mine}"]}},
    {"algorithm": {"name": "FlowGRPO", "overrides": ["algorithm.adv_estimator=mine"]}},
    {"algorithm": {"name": "Custom", "overrides": ["trainer.seed=1"]}},
    {"algorithm.name": "GRPOGuard", "rollout.sampler.type": "cps"},
    {"algorithm.name": "GRPOGuard", "rollout.sampler.type": "dance_sde"},
    {"algorithm.name": "DanceGRPO", "rollout.sampler.type": "sde"},
    {"algorithm.name": "DanceGRPO"},
    {"algorithm.name": "MixGRPO"},
    {"algorithm.name": "MixGRPO", "rollout.sampler.window": {"size": 1, "end": 2}},
    {"algorithm.name": "MixGRPO", "rollout.sampler.noiseLevel": 0, "rollout.sampler.window": {"size": 1, "end": 2}},
    {"rollout.sampler.window": {"size": 1, "end": 2, "placement": "Progressive", "stepsPerPlace": 1}},
    {"backoffLimit": 1, "checkpoint.claimName": "runs"},
    {"trainer.accelerator": {"vendor": "Ascend", "preset": "Atlas-A2", "count": 2}, "rollout.replicas": 2},
)
NAMES = ("a-job", "a" * 43, "a" * 44, "1a", "a.b", "a-")


def cases() -> list[Document]:
    """Every change that is written down above, one at a time: for a comparison that leaves nothing to chance."""
    named = [{**copy.deepcopy(SMALLEST), "metadata": {"name": name}} for name in NAMES]
    sizes = (ANNOTATIONS_BYTES - 1, ANNOTATIONS_BYTES)  # with a key of one byte: the largest, and one byte more
    named += [
        {**copy.deepcopy(SMALLEST), "metadata": {"name": "red", "annotations": {"a": "x" * size}}} for size in sizes
    ]
    return [*named, *(applied([change]) for change in changes())]


def changes() -> list[Change]:
    """The changes that are written down above: values by the paths of their fields."""
    return [*({field: value} for field, values in TOGETHER for value in values), *SETS]


def applied(several: Iterable[Change]) -> Document:
    """The smallest job with changes."""
    document = copy.deepcopy(SMALLEST)
    for field, value in (item for change in several for item in change.items()):
        *path, last = field.split(".")
        node = document["spec"]
        for step in path:
            if not isinstance(node.get(step), dict):
                node[step] = {}
            node = node[step]
        node[last] = copy.deepcopy(value)
    return document
