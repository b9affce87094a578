"""PURE: layout of a run: its folder, nodes and accelerators, and absolute paths of the job."""

import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import is_in_store
from omni_operator.api.spec.pods import Accelerator

from .pods.accelerators import ray_resource_of


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Layout of a run.

    Attributes:
        run_folder: absolute path of the run folder.
        nodes, accelerators_per_node: the trainer's.
        rollout_nodes, rollout_accelerators_per_node: the standalone engines'; 0 where they share the trainer's.
        judge_nodes, judge_accelerators_per_node: the judge's; 0 where it shares the trainer's.
        rollout_ray_resource, judge_ray_resource: Ray resource that their accelerators count as; None: as the trainer's.
        pinned: the nodes of each pool have a Ray resource that names the pool.
    """

    run_folder: str
    nodes: int
    accelerators_per_node: int
    rollout_nodes: int = 0
    rollout_accelerators_per_node: int = 0
    judge_nodes: int = 0
    judge_accelerators_per_node: int = 0
    rollout_ray_resource: str | None = None
    judge_ray_resource: str | None = None
    pinned: bool = False


def local_layout(job: DiffusionRLJob, runs: str) -> RunLayout:
    """All accelerators on one machine; the run folder is `<runs>/<name of the job>`."""
    return RunLayout(
        posixpath.join(runs, job.metadata.name),
        nodes=1,
        accelerators_per_node=job.spec.trainer.accelerators,
        rollout_nodes=1 if job.spec.rollout.separate else 0,
        rollout_accelerators_per_node=job.spec.rollout_accelerators,
        judge_nodes=1 if job.spec.judge_pods else 0,
        judge_accelerators_per_node=job.spec.judge_accelerators,
    )


def pod_layout(job: DiffusionRLJob, run_folder: str) -> RunLayout:
    """A node is a pod."""
    trainer = job.spec.trainer
    separate = job.spec.rollout.separate
    judge = job.spec.judge_pods
    return RunLayout(
        run_folder,
        nodes=trainer.replicas,
        accelerators_per_node=trainer.accelerator.count,
        rollout_nodes=job.spec.rollout.replicas if separate else 0,
        rollout_accelerators_per_node=job.spec.rollout_accelerator.count if separate else 0,
        judge_nodes=judge,
        judge_accelerators_per_node=job.spec.judge_accelerator.count if judge else 0,
        rollout_ray_resource=_other_resource(job, job.spec.rollout_accelerator) if separate else None,
        judge_ray_resource=_other_resource(job, job.spec.judge_accelerator) if judge else None,
        pinned=job.spec.has_pools,
    )


def _other_resource(job: DiffusionRLJob, accelerator: Accelerator) -> str | None:
    resource = ray_resource_of(accelerator)
    return None if resource == ray_resource_of(job.spec.trainer.accelerator) else resource


def resolve_paths(job: DiffusionRLJob, folder: str) -> DiffusionRLJob:
    """The job with absolute paths; relative ones start at `folder`, the folder of its YAML file."""

    return map_paths(job, lambda path: posixpath.normpath(posixpath.join(folder, path)))


def map_paths(job: DiffusionRLJob, change: Callable[[str], str]) -> DiffusionRLJob:
    """The job with every path of a file or folder changed; URLs of a store stay."""

    def changed(path: str) -> str:
        return path if is_in_store(path) else change(path)

    spec = job.spec
    model = spec.model
    if model.base_is_folder:
        model = model.model_copy(update={"base": changed(model.base)})
    if model.lora.start_from is not None:
        lora = model.lora.model_copy(update={"start_from": changed(model.lora.start_from)})
        model = model.model_copy(update={"lora": lora})
    data = spec.data.model_copy(
        update={"train": tuple(map(changed, spec.data.train)), "validation": tuple(map(changed, spec.data.validation))}
    )
    scorers = []
    for scorer in spec.reward.scorers:
        function = scorer.function
        if function and not function.path.startswith("pkg://"):
            moved = function.model_copy(update={"path": changed(function.path)})
            scorer = scorer.model_copy(update={"function": moved})
        if moved_settings := {name: changed(path) for name, path in scorer.paths.items()}:
            scorer = scorer.model_copy(update={"settings": {**scorer.settings, **moved_settings}})
        if scorer.pool and scorer.pool.python:
            pool = scorer.pool.model_copy(update={"python": changed(scorer.pool.python)})
            scorer = scorer.model_copy(update={"pool": pool})
        scorers.append(scorer)
    judge = spec.reward.model
    if judge and judge.base_is_folder:
        judge = judge.model_copy(update={"base": changed(judge.base)})
    reward = spec.reward.model_copy(update={"scorers": tuple(scorers), "model": judge})
    return job.model_copy(update={"spec": spec.model_copy(update={"model": model, "data": data, "reward": reward})})
