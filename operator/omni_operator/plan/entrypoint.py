"""PURE: entry point of a job's RayJob: the command of a local run, in the run folder of the claim."""

import shlex

from omni_operator.api import DiffusionRLJob

from .overrides import render_command, render_overrides
from .pods.storage import model_path, run_folder_path
from .pods.workers import JOB, JOB_FOLDER, OVERRIDES
from .run_layout import RunLayout, pod_layout, resolve_paths

LOG = "train.log"
CONTAINER_OUTPUT = "/proc/1/fd/1"
JOIN_RAY = "ray_kwargs.ray_init.address=auto"
COPY_SECONDS = 30


def resolve_for_pods(job: DiffusionRLJob) -> tuple[DiffusionRLJob, RunLayout]:
    """The job with the paths of its pods, and its layout there."""
    resolved = resolve_paths(job, job.spec.runtime.working_dir)
    if not job.spec.model.base_is_folder:
        path = model_path(job.spec.model.base, job.spec.model.revision)
        model = resolved.spec.model.model_copy(update={"base": path})
        resolved = resolved.model_copy(update={"spec": resolved.spec.model_copy(update={"model": model})})
    judge = job.spec.reward.model
    if judge and not judge.base_is_folder:
        moved = judge.model_copy(update={"base": model_path(judge.base)})
        reward = resolved.spec.reward.model_copy(update={"model": moved})
        resolved = resolved.model_copy(update={"spec": resolved.spec.model_copy(update={"reward": reward})})
    return resolved, pod_layout(job, run_folder_path(job))


def render_pod_overrides(made: DiffusionRLJob, layout: RunLayout) -> list[str]:
    """The trainer's overrides: the same as for `drl run`, and the address of the RayCluster.

    Args:
        made, layout: what `resolve_for_pods` returns.
    """
    return [*render_overrides(made, layout), JOIN_RAY]


def render_entrypoint(made: DiffusionRLJob, layout: RunLayout) -> str:
    """`spec.entrypoint` of a RayJob, a shell command: fill the run folder like a local one, then start the trainer.

    The trainer's output goes to Ray's log of the job, to the run folder, and to the container's output for
    `kubectl logs`. Ray reads its log when the command ends, so the command ends after the copy of the output, with the
    trainer's exit code. Processes that the trainer leaves behind may hold its output open: the copy has
    `COPY_SECONDS` then.

    Args:
        made, layout: what `resolve_for_pods` returns.
    """
    folder = shlex.quote(layout.run_folder)
    copied = " ".join(f"{JOB_FOLDER}/{name}" for name in (JOB, OVERRIDES))
    # Ray stops a job by a signal to each of its processes. The copier ignores it, to copy the trainer's last output;
    # the shell waits, and forwards nothing: at a second signal, the trainer would stop at once.
    copier = f'(trap \'\' INT TERM; exec <"$pipe"; rm "$pipe"; exec tee -a {folder}/{LOG} {CONTAINER_OUTPUT})'
    trainer = shlex.join([*render_command(made, layout), JOIN_RAY])
    copied_or_late = f"timeout --foreground {COPY_SECONDS} tail --pid=$copier --follow /dev/null"
    return (
        f'mkdir -p {folder} && cp -f {copied} {folder}/ && pipe=$(mktemp -u) && mkfifo "$pipe" '
        f"&& {{ {copier} & copier=$!; trap : INT TERM; "
        f'{trainer} >"$pipe" 2>&1; code=$?; {copied_or_late}; exit $code; }}'
    )
