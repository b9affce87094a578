"""PURE: why the API server or the cluster's policy refuses the pods of a job, with the field that is to blame.

The rules see the pods as KubeRay gets them, with the author's template merged. Without a template the operator's own
pods remain, which satisfy every policy, so that only service account and Secrets are left to check.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import FieldPath, Violation
from omni_operator.api.names import report_audience
from omni_operator.api.spec.pod_schema import TOLD, find_errors
from omni_operator.api.spec.pods import Resources
from omni_operator.api.validation_messages import format_path
from omni_operator.plan.cluster_settings import ClusterSettings
from omni_operator.plan.pods.accelerators import resolve_accelerator
from omni_operator.plan.pods.head import render_head_group
from omni_operator.plan.pods.merge import KEYS
from omni_operator.plan.pods.validity import find_mistakes, find_wrong_resources
from omni_operator.plan.pods.workers import render_worker_groups
from omni_operator.plan.pools import pools_of

from .pod_rules import Object, find_breaches, refuse_secret, refuse_service_account

RUNTIME: FieldPath = ("spec", "runtime")


def find_invalid_pods(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    """What the API server would refuse in the job's pods, whatever the policy."""
    for field, resources, accelerators in _resources(job, settings):
        requests, limits = (
            {name: amount for name, amount in amounts.items() if name != accelerators}
            for amounts in (resources.requests, resources.limits)
        )
        for violation in find_wrong_resources(requests, limits):
            yield Violation(("spec", *field, "resources", *violation.at), violation.text)
    for field, patch, final in _templates(job, settings):
        owner: FieldPath = ("spec", *field, "podTemplate")
        for error in islice(find_errors(final, complete=True), TOLD):
            yield Violation((*owner, *_place(error.at, final, patch)), _say(error, final, patch))
        for mistake in islice(find_mistakes(final), TOLD):
            blamed = _place(mistake.at, final, patch)
            if _is_authors(mistake.at, blamed):
                yield Violation((*owner, *blamed), _say(mistake, final, patch))


def find_policy_refusals(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    """Everything in the job's pods that `settings.pod_policy` does not allow."""
    policy = settings.pod_policy
    refused = set()
    for breach in _fields(job, settings):
        refused.add(breach.text)
        yield breach
    audience = report_audience(job.metadata.namespace or "default", job.metadata.name)
    for field, patch, final in _templates(job, settings):
        told: set[str] = set(refused)
        for breach in islice(find_breaches(final, policy, audience), TOLD):
            blamed = _place(breach.at, final, patch)
            # Init containers of the operator have variables and mounts of the author's container: one line is to blame.
            if breach.text not in (told if len(blamed) < len(breach.at) else refused):
                yield Violation(("spec", *field, "podTemplate", *blamed), breach.text)
            told.add(breach.text)


def _resources(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[tuple[FieldPath, Resources, str | None]]:
    """Fields of the job with the resources of a container, and the resource whose amount the operator sets."""
    yield ("head",), job.spec.head.resources, None
    for pool in pools_of(job):
        yield pool.field, pool.resources, resolve_accelerator(pool.accelerator, settings).resource


def _templates(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[tuple[FieldPath, Object, Object]]:
    """Pods with a template of the author: its field, the template, and the final one."""
    patches = [(("head",), job.spec.head.pod_template), *((pool.field, pool.pod_template) for pool in pools_of(job))]
    if any(patch for _, patch in patches):
        groups = [render_head_group(job, 1, settings), *render_worker_groups(job, 1, settings)]
        for (field, patch), group in zip(patches, groups, strict=True):
            if patch:
                yield field, patch, group["template"]


def _is_authors(at: FieldPath, blamed: FieldPath) -> bool:
    """Whether a mistake is in what the author wrote: not in a container of the operator, nor in its resources."""
    return len(blamed) >= min(len(at), 3) and ("resources" not in at or "resources" in blamed)


def _fields(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    """Breaches in fields of the job outside its pod templates."""
    policy = settings.pod_policy
    spec = job.spec
    account = spec.runtime.service_account_name or "default"
    yield from refuse_service_account((*RUNTIME, "serviceAccountName"), account, policy)
    for index, secret in enumerate(spec.runtime.image_pull_secrets):
        yield from refuse_secret((*RUNTIME, "imagePullSecrets", index), secret.name, policy)
    if spec.model.token_secret_ref:
        yield from refuse_secret(("spec", "model", "tokenSecretRef"), spec.model.token_secret_ref.name, policy)
    if spec.storage.secret_name:
        yield from refuse_secret(("spec", "storage", "secretName"), spec.storage.secret_name, policy)
    if key := spec.observability.tracking.wandb_secret_ref:
        yield from refuse_secret(("spec", "observability", "tracking", "wandbSecretRef"), key.name, policy)


def _say(error: Violation, final: Any, patch: Any) -> str:
    """The text of an error, with the steps of its path that the author's template does not have."""
    path = _place(error.at, final, patch)
    missing = format_path(error.at[len(path) :])
    return f"{missing} {error.text}" if len(path) < len(error.at) else error.text


def _place(at: FieldPath, final: Any, patch: Any) -> FieldPath:
    """Path of a field in the author's template, or of its nearest parent there; items are found as when merging."""
    path: list[str | int] = []
    for step in at:
        if isinstance(step, int):
            final = final[step]
            key = KEYS.get(str(path[-1]), "name")
            keys = [item.get(key) if isinstance(item, dict) else None for item in patch]
            name = final.get(key) if isinstance(final, dict) else None
            if name is not None and name not in keys:
                break
            step = keys.index(name) if name is not None else step
            if step >= len(patch):
                break
        elif not isinstance(patch, dict) or step not in patch:
            break
        else:
            final = final.get(step, {})
        patch = patch[step]
        path.append(step)
    return tuple(path)
