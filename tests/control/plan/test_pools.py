"""Two pools of pods: the trainer's, and rollout pods with engines of their own."""

import json
from typing import Any

import pytest

from control.plan.rendered_objects import SETTINGS, groups, make_job, pod_settings, ray_job
from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.cluster.cache.job_parser import parse_job_facts
from omni_operator.status.observed.observation import Attempt
from omni_operator.status.report.progress import count_accelerators

SEPARATE = (
    "spec.trainer.accelerator={vendor: NVIDIA, count: 8}",
    "spec.rollout.placement=Separate",
    "spec.rollout.replicas=3",
    "spec.rollout.accelerator={vendor: NVIDIA, count: 4}",
)


def container(group: dict[str, Any]) -> dict[str, Any]:
    (main,) = group["template"]["spec"]["containers"]
    return main


def test_rollout_pods_have_a_folder_for_prompt_embeddings_if_the_job_keeps_them() -> None:
    path = f"{make_job().spec.checkpoint.path}/.prompt-cache"
    for kept in (False, True):
        trainer, rollout = groups(make_job(*SEPARATE, f"spec.rollout.engine.promptCache={str(kept).lower()}"))
        mounts = {entry["mountPath"]: entry["name"] for entry in container(rollout)["volumeMounts"]}
        assert mounts.get(path) == ("prompt-cache" if kept else None)
        assert ({"name": "prompt-cache", "emptyDir": {}} in rollout["template"]["spec"]["volumes"]) is kept
        assert path not in {entry["mountPath"] for entry in container(trainer)["volumeMounts"]}, "of the run folders"


def test_batches_are_generated_ahead_only_where_the_job_asks_for_it() -> None:
    mode = ("trainer.use_v1", "trainer.v1.trainer_mode", "trainer.v1.separate_async.num_warmup_batches")
    for assignments, values in (
        ((), [None, None, None]),
        (("spec.rollout.batchesAhead=2",), [True, "separate_async", 2]),
    ):
        rendered = pod_settings(make_job(*SEPARATE, *assignments))
        assert [rendered.get(name) for name in mode] == values


CORRECTION = "algorithm.rollout_correction"
BYPASS = f"{CORRECTION}.bypass_mode"
RATIOS = "spec.algorithm.overrides"
REJECTED = json.dumps([f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"])
AHEAD = "spec.rollout.batchesAhead=1"


@pytest.mark.parametrize(
    ("assignments", "value"),
    [
        ((AHEAD,), True),
        ((), None),
        ((AHEAD, f"{RATIOS}=[{BYPASS}=false]"), None),
        ((AHEAD, f"{RATIOS}={REJECTED}"), None),
        ((AHEAD, f"{RATIOS}=[trainer.v1.separate_async.sync_compatible=true]"), None),
        ((AHEAD, "spec.algorithm.name=GRPOGuard"), None),
        ((AHEAD, "spec.algorithm.name=DiffusionNFT", "spec.rollout.sampler.noiseLevel=0"), None),
    ],
)
def test_older_samples_have_a_ratio_that_is_clipped_unless_the_job_says_otherwise(
    assignments: tuple[str, ...], value: bool | None
) -> None:
    assert pod_settings(make_job(*SEPARATE, *assignments)).get(BYPASS) is value


def with_replicas() -> list[DiffusionRLJob]:
    """Jobs that differ in the number of their rollout pods."""
    others = [text for text in SEPARATE if "rollout.replicas" not in text]
    return [make_job(*others, f"spec.rollout.replicas={count}") for count in (3, 5, 40)]


def test_the_number_of_rollout_pods_is_no_part_of_what_an_attempt_is_made_of() -> None:
    digests = {plan.digest_attempt(job, 1, SETTINGS) for job in with_replicas()}
    assert len(digests) == 1
    queued = with_replicas()
    for job in queued:
        job.metadata.labels["kueue.x-k8s.io/queue-name"] = "q"
    assert len({plan.digest_attempt(job, 1, SETTINGS) for job in queued}) == 3
    trainer, rollout = groups(queued[0])
    assert [(group["minReplicas"], group["maxReplicas"]) for group in (trainer, rollout)] == [(1, 1), (3, 3)]


@pytest.mark.parametrize(("seconds", "grace"), [(None, 90), (5, 35), (0, None)])
def test_a_rollout_pod_that_is_deleted_drains_its_node_first(seconds: int | None, grace: int | None) -> None:
    assignments = () if seconds is None else (f"spec.rollout.drainSeconds={seconds}",)
    trainer, rollout = groups(make_job(*SEPARATE, *assignments))
    assert rollout["template"]["spec"].get("terminationGracePeriodSeconds") == grace
    hook = container(rollout).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    assert hook == (grace and ["python3", "-m", "verl_omni.utils.drain_node", str(grace - 30)])
    assert "lifecycle" not in container(trainer) and "terminationGracePeriodSeconds" not in trainer["template"]["spec"]


def test_the_least_number_of_pods_is_given_to_the_trainer_in_engines() -> None:
    parallel = ("spec.rollout.engine.tensorParallelSize=2", "spec.rollout.minReplicas=2")
    job = make_job(*SEPARATE, *parallel)
    name = "actor_rollout_ref.rollout.min_replicas"
    assert pod_settings(job)[name] == 4, "two engines in each pod"
    assert plan.render_settings(job, plan.local_layout(job, "/runs"))[name] == 4
    assert name not in pod_settings(make_job(*SEPARATE))


def test_the_trainer_gets_the_pools_as_settings() -> None:
    names = (
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
        "trainer.node_resource",
        "actor_rollout_ref.rollout.nnodes",
        "actor_rollout_ref.rollout.n_gpus_per_node",
        "actor_rollout_ref.rollout.node_resource",
    )
    job = make_job(*SEPARATE)
    in_pods = pod_settings(job)
    assert [in_pods.get(name) for name in names] == [1, 8, "omni_trainer", 3, 4, "omni_rollout"]
    # One machine has the accelerators of all pods, and nodes need no names.
    on_one_machine = plan.render_settings(job, plan.local_layout(job, "/runs"))
    assert [on_one_machine.get(name) for name in names] == [1, 8, None, 1, 12, None]
    colocated = pod_settings(make_job())
    assert [colocated.get(name) for name in names] == [1, 1, None, None, None, None]


def test_pools_of_two_vendors_get_what_each_needs_and_the_trainer_gets_rays_names() -> None:
    image = "podTemplate: {spec: {containers: [{name: ray, image: 'ascend:1'}]}}"
    accelerator = "accelerator: {vendor: Ascend, count: 2}"
    job = make_job(
        SEPARATE[0],
        "spec.model.base=o/model",
        f"spec.rollout={{placement: Separate, replicas: 3, {accelerator}, {image}}}",
        f"spec.reward.model={{base: o/judge, placement: Separate, {accelerator}, {image}}}",
    )
    assert plan.describe_refusals(job, SETTINGS) is None
    trainer, rollout, reward = groups(job)
    for group, platform, resources, image in (
        (trainer, "nvidia", {"GPU": "8"}, "rollout:1"),
        (rollout, "huawei", {"NPU": "2"}, "ascend:1"),
        (reward, "huawei", {"NPU": "2"}, "ascend:1"),
    ):
        assert {name: count for name, count in group["resources"].items() if name in ("GPU", "NPU")} == resources
        images = {init_container["image"] for init_container in group["template"]["spec"]["initContainers"]}
        assert images == {image}, "init containers download on the same nodes"
        (variable,) = [entry["value"] for entry in container(group)["env"] if entry["name"] == "VERL_PLATFORM"]
        assert (variable, container(group)["image"]) == (platform, image)
    names = ("actor_rollout_ref.rollout.ray_resource", "reward.reward_model.ray_resource")
    in_pods = pod_settings(job)
    assert [in_pods.get(name) for name in names] == ["NPU", "NPU"]
    same = pod_settings(make_job(*SEPARATE))
    assert [same.get(name) for name in names] == [None, None], "an image of an earlier version does not have them"


def test_rollout_pods_get_no_file_or_token_that_only_the_training_program_reads() -> None:
    tracking = "spec.observability.tracking={loggers: [wandb], wandbSecretRef: {name: w, key: k}}"
    trainer, rollout = groups(make_job(*SEPARATE, tracking, "spec.checkpoint.claimName=runs", "spec.model.base=a/b"))
    volumes = [{volume["name"] for volume in group["template"]["spec"]["volumes"]} for group in (trainer, rollout)]
    assert volumes == [{"shared-memory", "runs", "models", "job", "report-token"}, {"shared-memory", "models"}]
    variables = [{entry["name"] for entry in container(group)["env"]} for group in (trainer, rollout)]
    assert variables[0] - variables[1] == {"WANDB_API_KEY", "DIFFUSIONRL_REPORT_URL", "DIFFUSIONRL_REPORT_TOKEN_FILE"}
    assert "annotations" not in rollout["template"]["metadata"]
    (fetch,) = rollout["template"]["spec"]["initContainers"]
    assert fetch["name"] == "fetch-model"


def test_without_accelerators_of_their_own_rollout_pods_have_those_of_the_trainer() -> None:
    trainer, rollout = groups(
        make_job(SEPARATE[0], "spec.rollout.placement=Separate", "spec.scheduling.nodeSelector={a: b}")
    )
    assert trainer["resources"]["GPU"] == rollout["resources"]["GPU"] == "8"
    assert container(trainer)["resources"] == container(rollout)["resources"]
    # The scheduling of the trainer's pods stays theirs.
    assert "nodeSelector" not in rollout["template"]["spec"]


def test_pods_and_accelerators_of_both_pools_count() -> None:
    counts = []
    for assignments in (SEPARATE, (), ("spec.rollout.placement=Separate", "spec.trainer.accelerator.vendor=CPU")):
        job = make_job(*assignments)
        facts = parse_job_facts({"metadata": {"name": "a"}}, job)
        counts.append((facts.trainer.pods, facts.rollouts.pods, count_accelerators(facts, Attempt())))
    assert counts == [(1, 3, 8 + 3 * 4), (1, 0, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (
            ["spec.trainer.accelerator={vendor: NVIDIA}", "spec.rollout.accelerator={vendor: Ascend}"],
            "spec.rollout.podTemplate: must name the image of container ray, for Ascend: the image of the job is for "
            "NVIDIA",
        ),
        (
            ["spec.rollout.podTemplate={spec: {hostNetwork: true}}"],
            "spec.rollout.podTemplate.spec.hostNetwork: hostNetwork is not allowed",
        ),
        (
            ["spec.rollout.podTemplate={spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: c}}]}}"],
            "spec.rollout.podTemplate.spec.volumes[0]: no container mounts 'a'",
        ),
    ],
)
def test_rollout_pods_are_refused_for_what_trainer_pods_are(assignments: list[str], said: str) -> None:
    job = make_job("spec.rollout.placement=Separate", *assignments)
    assert said in (plan.describe_refusals(job, SETTINGS) or "")


def test_an_engine_only_has_to_fit_in_its_own_pod() -> None:
    assignments = ("spec.rollout.engine.tensorParallelSize=2", "spec.rollout.accelerator={vendor: CPU, count: 4}")
    job = make_job("spec.rollout.placement=Separate", "spec.trainer.accelerator={vendor: CPU, count: 1}", *assignments)
    assert plan.describe_refusals(job, SETTINGS) is None


QUEUE = "metadata.labels={kueue.x-k8s.io/queue-name: a}"
ON_CLAIM = "spec.checkpoint.claimName=runs"


@pytest.mark.parametrize(
    ("assignments", "grace"),
    [
        ((QUEUE, ON_CLAIM), 330),
        ((QUEUE, ON_CLAIM, "spec.suspendPolicy.graceSeconds=40"), 70),
        ((QUEUE, ON_CLAIM, "spec.suspendPolicy.graceSeconds=0"), None),
        ((QUEUE, ON_CLAIM, "spec.suspendPolicy.mode=Immediate"), None),
        ((QUEUE,), None),
        ((ON_CLAIM,), 330),
    ],
    ids=["in a queue", "as long as it may", "no time", "at once", "nothing to keep", "in no queue"],
)
def test_head_and_trainer_pods_save_before_they_end(assignments: tuple[str, ...], grace: int | None) -> None:
    cluster = ray_job(make_job(*SEPARATE, *assignments))["spec"]["rayClusterSpec"]
    trainer, rollout = cluster["workerGroupSpecs"]
    for group in (cluster["headGroupSpec"], trainer):
        hook = container(group).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        assert group["template"]["spec"].get("terminationGracePeriodSeconds") == grace
        expected = None if grace is None else ["python3", "-m", "verl_omni.utils.save_before_stop", str(grace - 30)]
        assert hook == expected
    assert "drain_node" in str(container(rollout)["lifecycle"]), "those drain themselves"
