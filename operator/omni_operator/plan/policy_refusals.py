"""PURE: why the cluster's policy refuses the pods of a job, with the field of the job that is to blame.

The rules see the pods as KubeRay gets them, with the author's template merged. Without a template the operator's own
pods remain, which satisfy every policy, so that only service account and Secrets are left to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import Violation
from omni_operator.api.names import report_audience

from .cluster_settings import ClusterSettings
from .head import render_head_group
from .pod_rules import Breach, Path, find_breaches, refuse_secret, refuse_service_account
from .workers import render_worker_group

RUNTIME: Path = ("spec", "runtime")


def find_policy_refusals(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    """Everything in the job's pods that `settings.pod_policy` does not allow."""
    policy, refused = settings.pod_policy, set()
    for breach in _fields(job, settings):
        refused.add(breach.text)
        yield Violation(breach.at, breach.text)
    audience = report_audience(job.metadata.namespace or "default", job.metadata.name)
    for role, patch, render in (
        ("head", job.spec.head.pod_template, render_head_group),
        ("trainer", job.spec.trainer.pod_template, render_worker_group),
    ):
        if not patch:
            continue
        final = render(job, 1, settings)["template"]
        for breach in find_breaches(final, policy, audience):
            if breach.text not in refused:
                yield Violation(("spec", role, "podTemplate", *_place(breach.at, final, patch)), breach.text)


def _fields(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Breach]:
    """Breaches in fields of the job outside its pod templates."""
    policy, spec = settings.pod_policy, job.spec
    account = spec.runtime.service_account_name or "default"
    yield from refuse_service_account((*RUNTIME, "serviceAccountName"), account, policy)
    for place, secret in enumerate(spec.runtime.image_pull_secrets):
        yield from refuse_secret((*RUNTIME, "imagePullSecrets", place), secret.name, policy)
    if spec.model.token_secret_ref:
        yield from refuse_secret(("spec", "model", "tokenSecretRef"), spec.model.token_secret_ref.name, policy)
    if key := spec.observability.tracking.wandb_secret_ref:
        yield from refuse_secret(("spec", "observability", "tracking", "wandbSecretRef"), key.name, policy)


def _place(at: Path, final: Any, patch: Any) -> Path:
    """Path of a field in the author's template, or of its nearest parent there; lists are compared by name."""
    made: list[str | int] = []
    for step in at:
        final = final[step] if isinstance(step, int) else final.get(step, {})
        if isinstance(step, int):
            names = [item.get("name") if isinstance(item, dict) else None for item in patch]
            name = final.get("name") if isinstance(final, dict) else None
            if name is not None and name not in names:
                break
            step = names.index(name) if name is not None else step
            if step >= len(patch):
                break
            patch = patch[step]
        elif isinstance(patch, dict) and step in patch:
            patch = patch[step]
        else:
            break
        made.append(step)
    return tuple(made)
