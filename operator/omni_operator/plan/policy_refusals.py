"""PURE: why the cluster's policy refuses the pods of a job, with the field of the job that is to blame.

The rules see the pods as KubeRay gets them, with the author's template merged. Without a template the operator's own
pods remain, which satisfy every policy, so that only service account and Secrets are left to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import FieldPath, Violation
from omni_operator.api.names import report_audience
from omni_operator.api.spec.pod_schema import TOLD, find_errors
from omni_operator.api.validation_messages import format_path
from omni_operator.plan.cluster_settings import ClusterSettings
from omni_operator.plan.pods.head import render_head_group
from omni_operator.plan.pods.merge import KEYS
from omni_operator.plan.pods.workers import render_worker_groups
from omni_operator.plan.pools import pools_of

from .pod_rules import find_breaches, refuse_secret, refuse_service_account

RUNTIME: FieldPath = ("spec", "runtime")


def find_policy_refusals(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    """Everything in the job's pods that `settings.pod_policy` does not allow."""
    policy = settings.pod_policy
    refused = set()
    for breach in _fields(job, settings):
        refused.add(breach.text)
        yield breach
    audience = report_audience(job.metadata.namespace or "default", job.metadata.name)
    patches = [(("head",), job.spec.head.pod_template), *((pool.field, pool.pod_template) for pool in pools_of(job))]
    for place, (field, patch) in enumerate(patches):
        if not patch:
            continue
        groups = [render_head_group(job, 1, settings), *render_worker_groups(job, 1, settings)]
        final = groups[place]["template"]
        owner: FieldPath = ("spec", *field, "podTemplate")
        for error in islice(find_errors(final, complete=True), TOLD):
            yield Violation((*owner, *_place(error.at, final, patch)), _say(error, final, patch))
        told: set[str] = set(refused)
        for breach in islice(find_breaches(final, policy, audience), TOLD):
            blamed = _place(breach.at, final, patch)
            # Init containers of the operator have variables and mounts of the author's container: one line is to blame.
            if breach.text not in (told if len(blamed) < len(breach.at) else refused):
                yield Violation((*owner, *blamed), breach.text)
            told.add(breach.text)


def _fields(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    """What the policy forbids in fields of the job outside its pod templates."""
    policy = settings.pod_policy
    spec = job.spec
    account = spec.runtime.service_account_name or "default"
    yield from refuse_service_account((*RUNTIME, "serviceAccountName"), account, policy)
    for place, secret in enumerate(spec.runtime.image_pull_secrets):
        yield from refuse_secret((*RUNTIME, "imagePullSecrets", place), secret.name, policy)
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
