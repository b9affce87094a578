"""Generator of the CustomResourceDefinition from the models.

    python -m omni_operator.api.crd.definition --out crds/ [--check]

`--check` writes nothing and fails if the file does not match the models.
"""

import io
from typing import Any

from ruamel.yaml import YAML

from omni_operator.api.base import VALIDATIONS, Cel
from omni_operator.api.job import API_VERSION, KIND, DiffusionRLJob, Spec
from omni_operator.api.metadata import DNS_1035, NAME_LIMIT
from omni_operator.api.status import UNSEEN, Status

from .joined_rules import join_rules
from .stored_jobs import spare_stored
from .structural import structural

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "diffusionrljobs"
FILE = f"{GROUP}_{PLURAL}.yaml"
# Those with priority 1 are shown by `kubectl get -o wide` only.
COLUMNS = (
    ("State", "string", ".status.state", "State of the job.", 0),
    ("Reason", "string", ".status.reason", "Reason of the state.", 0),
    ("Step", "string", ".status.progress.summary", "Finished training steps of all.", 0),
    ("Left", "string", ".status.progress.remainingSummary", "Estimated time to the last step.", 0),
    ("Reward", "string", ".status.progress.rewardSummary", "Mean reward of the last step.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created.", 0),
    ("Percent", "integer", ".status.progress.percent", "Finished training steps in percent of all.", 1),
    ("Attempts", "integer", ".status.attempts", "Attempts (RayJobs) so far.", 1),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Pods are ready, or the job needs none.", 1),
    ("Rollouts", "string", ".status.rollout.summary", "Pods with engines that are ready, of all.", 1),
    ("Weights", "integer", ".status.weights.trainerVersion", "Version of the trainer's weights.", 1),
    ("Lag", "integer", ".status.weights.lag", "Weight versions that the slowest engine is behind.", 1),
    ("RayJob", "string", ".status.children.rayJob", "RayJob of the running attempt.", 1),
)
# The scale subresource, for `kubectl scale` and HorizontalPodAutoscalers.
SCALE = {
    "specReplicasPath": ".spec.rollout.replicas",
    "statusReplicasPath": ".status.rollout.updated",
    "labelSelectorPath": ".status.rollout.selector",
}
# May change after the end of the job: they say what is deleted.
AFTER_THE_END = {"ttlSecondsAfterFinished", "cleanupPolicy"}


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as a dict."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["drl"],
                "categories": ["diffusionrl"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": spare_stored(join_rules(schema()))},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text, **({"priority": 1} if wide else {})}
            for name, kind, path, text, wide in COLUMNS
        ],
        "subresources": {"status": {}, "scale": SCALE},
    }


def schema() -> dict[str, Any]:
    """The structural schema of a job."""
    status = Status.model_json_schema(by_alias=True)
    return {
        "type": "object",
        "description": (DiffusionRLJob.__doc__ or "").strip(),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"API version: {API_VERSION}."},
            "kind": {"type": "string", "description": f"Kind: {KIND}."},
            "metadata": {"type": "object"},
            "spec": {**structural(Spec.model_json_schema(by_alias=True)), "description": "Training run to carry out."},
            "status": _owned_in_parts(_without_defaults(structural(status)))
            | {"description": "State of the job, as observed by the operator.", "default": UNSEEN},
        },
        VALIDATIONS: [rule.entry() for rule in _root_rules()],
    }


def _root_rules() -> list[Cel]:
    return [
        Cel(
            f"self.metadata.name.size() <= {NAME_LIMIT}",
            f"metadata.name must have at most {NAME_LIMIT} characters, because names of attempts and pods add suffixes",
        ),
        Cel(
            f"self.metadata.name.matches(r'{DNS_1035}')",
            "metadata.name must start with a letter and contain only lower-case letters, digits and '-'",
        ),
        Cel(
            "!has(oldSelf.status) || !has(oldSelf.status.conditions) || "
            "!oldSelf.status.conditions.exists(c, c.type in ['Succeeded', 'Failed'] && c.status == 'True') || "
            f"({' && '.join(_same(*field) for field in _fields())})",
            f"the job has ended: only {' and '.join(f'spec.{name}' for name in sorted(AFTER_THE_END))} may change; "
            "create a new job instead",
        ),
    ]


def _fields() -> list[tuple[str, bool]]:
    """Names of the fields of the spec that may not change after the end, and whether each is always set."""
    schema = structural(Spec.model_json_schema(by_alias=True))
    always = {*schema["required"], *(name for name, field in schema["properties"].items() if "default" in field)}
    return [(name, name in always) for name in schema["properties"] if name not in AFTER_THE_END]


def _same(name: str, always: bool) -> str:
    new = f"self.spec.{name}"
    old = f"oldSelf.spec.{name}"
    return f"{new} == {old}" if always else f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


def _owned_in_parts(status: dict[str, Any]) -> dict[str, Any]:
    """A status of which each part, and each condition, has one owner, who writes all of it.

    An owner of each field of them takes a tenth of the API server's time for a new job, and a quarter of the job's size
    (docs/contribute/evidence.md). Conditions have owners of their own: `ReconcileError` is written separately.
    """
    parts = {name: dict(part) for name, part in status["properties"].items()}
    for part in parts.values():
        if "properties" in part:
            part["x-kubernetes-map-type"] = "atomic"
        elif part.get("x-kubernetes-list-type") == "map":
            part["items"] = {**part["items"], "x-kubernetes-map-type": "atomic"}
    return {**status, "properties": parts}


def _without_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """Remove defaults: the status contains only what was observed."""
    kept = {key: value for key, value in node.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: _without_defaults(inner) for name, inner in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = _without_defaults(kept["items"])
    return kept


def text() -> str:
    """The CRD as the committed file."""
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=2, offset=0)
    yaml.representer.ignore_aliases = lambda data: True
    yaml.dump(crd(), stream)
    return f"# Generated from operator/omni_operator/api by `make crds`; do not edit.\n{stream.getvalue()}"
