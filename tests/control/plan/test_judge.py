"""A judge that the job serves: in the trainer's pods, or in its own reward pods."""

from typing import Any

from control.plan.rendered_objects import SETTINGS, groups, make_job, pod_settings
from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import RENDERED_ANNOTATION

RM = "reward.reward_model"
OCR = "spec.reward.scorers=[{name: genrm_ocr}]"
JUDGE = (OCR, "spec.reward.model.base=Qwen/Qwen3-VL-8B-Instruct")
GPUS = ("spec.trainer.accelerator={vendor: NVIDIA, count: 8}", "spec.rollout.replicas=8")
OWN = (
    *GPUS,
    "spec.reward.model.placement=Separate",
    "spec.reward.model.replicas=3",
    "spec.reward.model.accelerator={vendor: NVIDIA, count: 4}",
    "spec.reward.model.tensorParallelSize=2",
)
SEPARATE = (*JUDGE, *OWN)


def judge_settings(job: DiffusionRLJob) -> dict[str, Any]:
    prefix = f"{RM}."
    return {name.removeprefix(prefix): value for name, value in pod_settings(job).items() if name.startswith(prefix)}


def test_on_the_trainers_accelerators_there_is_one_pool_and_every_pod_downloads_it() -> None:
    job = make_job(*JUDGE, *GPUS, "spec.reward.model.tensorParallelSize=4")
    (trainer,) = groups(job)
    fetch = {container["name"]: container["command"] for container in trainer["template"]["spec"]["initContainers"]}
    folder = "/var/lib/diffusionrl/models/Qwen/Qwen3-VL-8B-Instruct"
    assert fetch["fetch-judge"] == ["hf", "download", "Qwen/Qwen3-VL-8B-Instruct", "--local-dir", folder]
    assert judge_settings(job) == {"enable": True, "model_path": folder, "rollout.tensor_model_parallel_size": 4}
    assert trainer["resources"]["CPU"] > groups(make_job(*GPUS))[0]["resources"]["CPU"]


def test_a_running_attempt_follows_the_number_of_reward_pods_but_not_in_a_queue() -> None:
    def limits(job: DiffusionRLJob) -> tuple[int, int]:
        *_, reward = groups(job)
        return reward["minReplicas"], reward["maxReplicas"]

    def digests(*more: str) -> set[str]:
        set_fields = {assignment.partition("=")[0] for assignment in ("spec.reward.model.replicas=", *more)}
        fixed = [assignment for assignment in SEPARATE if assignment.partition("=")[0] not in set_fields]
        jobs = [make_job(*fixed, *more, f"spec.reward.model.replicas={count}") for count in (3, 5)]
        seen = {plan.digest_attempt(job, 1, SETTINGS) for job in jobs}
        bodies = [plan.render_attempt(job, 1, SETTINGS) for job in jobs]
        assert seen == {body["metadata"]["annotations"][RENDERED_ANNOTATION] for body in bodies}
        return seen

    queue = "metadata.labels={kueue.x-k8s.io/queue-name: team}"  # in a queue, which has admitted the pods
    assert limits(make_job(*SEPARATE)) == (1, 1024) and limits(make_job(*SEPARATE, queue)) == (3, 3)
    assert len(digests()) == 1, "no other attempt"
    assert len(digests(queue)) == 2
    for changed in (
        "podTemplate={metadata: {labels: {a: b}}}",
        "resources={requests: {cpu: '2'}}",
        "sharedMemory={sizeLimit: 3Gi}",
        "scheduling={nodeSelector: {a: b}}",
        "updateStrategy={maxUnavailable: 2}",
    ):
        assert digests(f"spec.reward.model.{changed}") == digests(), "pods are replaced in the running attempt"
        assert digests(queue) != digests(queue, f"spec.reward.model.{changed}") or "updateStrategy" in changed
    assert digests("spec.reward.model.tensorParallelSize=4") != digests()


def test_on_one_machine_it_has_the_accelerators_of_all_its_pods() -> None:
    job = make_job(OCR, *OWN, "spec.reward.model.base=./judges/tiny")
    resolved = plan.resolve_paths(job, "/jobs")
    rendered = plan.render_settings(resolved, plan.local_layout(resolved, "/runs"))
    values = [rendered.get(f"{RM}.{name}") for name in ("model_path", "nnodes", "n_gpus_per_node", "node_resource")]
    assert values == ["/jobs/judges/tiny", 1, 12, None]
