"""Why the operator refuses a valid job on a cluster, and what it warns of."""

from collections.abc import Callable
from typing import Any

import pytest

from control.plan.rendered_objects import SETTINGS, make_job
from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.plan.refusals import ANNOTATIONS_BYTES, QUEUE_POD_SETS

ELASTIC = (
    "metadata={name: a, labels: {kueue.x-k8s.io/queue-name: q}, annotations: {kueue.x-k8s.io/elastic-job: 'true'}}"
)
OF_KUBERNETES = 256 * 1024  # TotalAnnotationSizeLimitB


@pytest.mark.parametrize(
    ("assignments", "settings", "said"),
    [
        ([], plan.ClusterSettings(), "spec.runtime.image: must be given"),
        (["spec.trainer.replicas=2", "spec.rollout.replicas=2"], SETTINGS, "spec.checkpoint.claimName: must be given"),
        (
            [
                "spec.trainer={totalSteps: 1, replicas: 2}",
                "spec.checkpoint.claimName=c",
                "spec.rollout.engine.tensorParallelSize=2",
            ],
            SETTINGS,
            "an engine must be in one pod",
        ),
        (
            ["spec.observability.tracking.loggers=[wandb]"],
            SETTINGS,
            "spec.observability.tracking.wandbSecretRef: must be given",
        ),
        (
            ["spec.trainer.podTemplate={spec: {volumes: [{name: d, persistentVolumeClaim: {claimName: d}}]}}"],
            SETTINGS,
            "spec.trainer.podTemplate.spec.volumes.0: no container mounts 'd'",
        ),
        (
            ["metadata.labels={kueue.x-k8s.io/queue-name: q}", "spec.cleanupPolicy=Retain"],
            SETTINGS,
            "must be DeleteCluster in a Kueue queue",
        ),
        (
            ["metadata.annotations={kueue.x-k8s.io/elastic-job: 'true'}"],
            SETTINGS,
            "metadata.annotations: kueue.x-k8s.io/elastic-job needs the label kueue.x-k8s.io/queue-name",
        ),
        (
            [ELASTIC, "spec.rollout={placement: Separate, replicas: 1, scheduling: {topology: {required: rack}}}"],
            SETTINGS,
            "spec.rollout.scheduling.topology: cannot be combined with the annotation kueue.x-k8s.io/elastic-job",
        ),
        (
            [ELASTIC, "spec.scheduling.topology.preferred=rack"],
            SETTINGS,
            "spec.scheduling.topology: cannot be combined",
        ),
    ],
)
def test_the_operator_refuses_jobs_with_an_explanation(
    assignments: list[str], settings: plan.ClusterSettings, said: str
) -> None:
    (refusal,) = plan.find_refusals(make_job(*assignments), settings)
    assert said in f"{'.'.join(map(str, refusal.at))}: {refusal.text}"


def with_pools(scorers: int, *assignments: str) -> DiffusionRLJob:
    named = ", ".join(f"{{name: s{number}, builtin: jpeg, pool: {{}}}}" for number in range(scorers))
    return make_job(f"spec.reward.scorers=[{named}, {{name: jpeg}}]", *assignments)


def test_a_queue_gets_no_job_with_more_groups_of_pods_than_kueue_admits() -> None:
    queue = "metadata.labels={kueue.x-k8s.io/queue-name: q}"
    fits = with_pools(QUEUE_POD_SETS - 2, queue)
    cluster = plan.render_attempt(fits, 1, SETTINGS)["spec"]["rayClusterSpec"]
    assert 1 + len(cluster["workerGroupSpecs"]) == QUEUE_POD_SETS, "head and worker groups"
    assert plan.find_refusals(fits, SETTINGS) == []
    assert plan.find_refusals(with_pools(18), SETTINGS) == [], "without a queue there is no limit"
    (refusal,) = plan.find_refusals(with_pools(18, queue), SETTINGS)
    assert refusal.at == ("spec", "reward", "scorers")
    groups = ", ".join(["head", "trainer", *(f"scorer-s{number}" for number in range(18))])
    assert refusal.text == (
        f"18 scorers have a pool, and the job has 20 groups of pods ({groups}): a Kueue queue admits at most 18; "
        "remove pool from 2 of them"
    )
    separate = with_pools(QUEUE_POD_SETS - 2, queue, "spec.rollout={placement: Separate, replicas: 1}")
    assert [refusal.at[-1] for refusal in plan.find_refusals(separate, SETTINGS)] == ["scorers"], "rollout pods count"


def test_the_pod_template_may_set_the_key_or_mode_of_wandb() -> None:
    env = "spec.trainer.podTemplate={spec: {containers: [{name: ray, env: [{name: WANDB_MODE, value: offline}]}]}}"
    assert plan.find_refusals(make_job("spec.observability.tracking.loggers=[wandb]", env), SETTINGS) == []


MOUNTED = "containers: [{name: ray, volumeMounts: [{name: d, mountPath: /runs}]}]"
CLAIM = "volumes: [{name: d, persistentVolumeClaim: {claimName: d}}]"


@pytest.mark.parametrize(
    ("assignments", "warned"),
    [
        ([], {"claimName", "vendor"}),
        (["spec.trainer.accelerator.vendor=CPU"], {"claimName"}),
        (["spec.checkpoint.claimName=c"], {"vendor"}),
        ([f"spec.trainer.podTemplate={{spec: {{{MOUNTED}, {CLAIM}}}}}"], {"vendor"}),
        (
            [f"spec.trainer.podTemplate={{spec: {{{MOUNTED}, volumes: [{{name: d, emptyDir: {{}}}}]}}}}"],
            {"claimName", "vendor"},
        ),
        (
            [f"spec.trainer.podTemplate={{spec: {{{MOUNTED}, {CLAIM}}}}}", "spec.checkpoint.path=/other"],
            {"claimName", "vendor"},
        ),
        (["spec.trainer.podTemplate={spec: {volumes: [{name: runs, csi: {driver: d}}]}}"], {"vendor"}),
    ],
)
def test_lost_results_and_a_missing_vendor_are_warnings(assignments: list[str], warned: set[str]) -> None:
    job = make_job(*assignments)
    assert {warning.at[-1] for warning in plan.find_warnings(job)} == warned
    assert plan.find_refusals(job, SETTINGS) == []


SERVED = "{name: genrm_ocr}"
ELSEWHERE = "{name: genrm_ocr, settings: {base_url: 'http://j/v1', model: m}}"
OWN_MANAGER = "spec.algorithm.overrides=[reward.reward_manager.module.path=mine.py]"


@pytest.mark.parametrize(
    ("assignments", "unused"),
    [
        (["spec.reward.model={base: a/b}"], True),
        (["spec.reward.model={base: a/b}", f"spec.reward.scorers=[{ELSEWHERE}]"], True),
        (["spec.reward.model={base: a/b}", f"spec.reward.scorers=[{ELSEWHERE}, {{name: unified_reward}}]"], False),
        (["spec.reward.model={base: a/b}", f"spec.reward.scorers=[{SERVED}]"], False),
        (["spec.reward.model={base: a/b}", "spec.reward.scorers=[{name: f, function: {path: pkg://f}}]"], False),
        (["spec.reward.model={base: a/b}", OWN_MANAGER], False),
        (["spec.reward.model={base: a/b}", "spec.algorithm.entrypoint=[mine]"], False),
        ([f"spec.reward.scorers=[{ELSEWHERE}]"], False),
    ],
)
def test_a_judge_that_no_scorer_asks_is_a_warning(assignments: list[str], unused: bool) -> None:
    at = ("spec", "reward", "model")
    assert (at in {warning.at for warning in plan.find_warnings(make_job(*assignments))}) is unused


@pytest.mark.parametrize("steps", [0, 5])
def test_a_patience_without_evaluations_during_the_training_is_a_warning(steps: int) -> None:
    scorers = "spec.reward.scorers=[{name: jpeg}, {name: shapes, use: Evaluation}]"
    patience = ("spec.reward.earlyStoppingPatience=2", scorers, "spec.data.validation=[h.txt]")
    warned = {
        warning.at[-1] for warning in plan.find_warnings(make_job(*patience, f"spec.trainer.evalEverySteps={steps}"))
    }
    assert ("earlyStoppingPatience" in warned) is (steps == 0)


def test_the_smallest_job_is_not_refused() -> None:
    assert plan.find_refusals(make_job(), SETTINGS) == []


def overrides(length: int) -> dict[str, Any]:
    return {
        "algorithm": {
            "overrides": [f"++data.apply_chat_template_kwargs.o{number}={length * 'a'}" for number in range(200)]
        }
    }


def variables(length: int) -> dict[str, Any]:
    env = [{"name": f"V{number}", "value": length * "a"} for number in range(200)]
    return {"trainer": {"totalSteps": 1, "podTemplate": {"spec": {"containers": [{"name": "ray", "env": env}]}}}}


def characters(length: int) -> dict[str, Any]:
    """Each takes 4 bytes in UTF-8, and 10 in YAML."""
    env = [{"name": "TEXT", "value": 100 * length * "\U0001f600"}]
    return {"trainer": {"totalSteps": 1, "podTemplate": {"spec": {"containers": [{"name": "ray", "env": env}]}}}}


def nodes(length: int) -> dict[str, Any]:
    """Short texts that YAML indents by 25 characters."""
    terms = [{"key": "n", "operator": "NotIn", "values": [f"n{number}" for number in range(20 * length)]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    return {"trainer": {"totalSteps": 1, "podTemplate": {"spec": {"affinity": {"nodeAffinity": required}}}}}


def annotated(length: int) -> dict[str, Any]:
    """They are in the job's text and next to it."""
    texts = {f"a{number}": length * "\U0001f600" for number in range(30)}
    return {"trainer": {"totalSteps": 1, "podTemplate": {"metadata": {"annotations": texts}}}}


@pytest.mark.slow
@pytest.mark.parametrize("part", [overrides, variables, characters, nodes, annotated])
def test_a_spec_that_does_not_fit_into_annotations_is_refused(part: Callable[[int], Any]) -> None:
    def job(length: int) -> DiffusionRLJob:
        document = make_job().model_dump(by_alias=True, mode="json", exclude_defaults=True)
        return DiffusionRLJob.model_validate({**document, "spec": {**document["spec"], **part(length)}})

    def size(length: int) -> int:
        workers, *_ = plan.render_attempt(job(length), 1, SETTINGS)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        pod_annotations = workers["template"]["metadata"]["annotations"]
        return sum(len(name.encode()) + len(value.encode()) for name, value in pod_annotations.items())

    fits = max(length for length in range(10, 1300, 40) if not plan.find_refusals(job(length), SETTINGS))
    assert ANNOTATIONS_BYTES * 0.8 < size(fits) < OF_KUBERNETES
    (refusal,) = plan.find_refusals(job(fits + 40), SETTINGS)
    assert refusal.at == ("spec",) and f"at most {ANNOTATIONS_BYTES}" in refusal.text
