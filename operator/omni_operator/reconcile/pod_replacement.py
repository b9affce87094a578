"""Changes of a worker group of a running RayCluster, for the replacement of its pods.

KubeRay applies a template to new pods only, deletes the pods that are named in `scaleStrategy.workersToDelete`, and
starts others for them at once.
"""

import copy
import json
from datetime import datetime
from typing import assert_never

from omni_operator.api.names import rolling_names
from omni_operator.cluster.cache.object_parser import parse_raycluster
from omni_operator.cluster.errors import Conflict
from omni_operator.cluster.kinds import RAYCLUSTERS, Body
from omni_operator.cluster.nested_json import load_json
from omni_operator.cluster.protocol import Cluster
from omni_operator.status.decisions.situation import (
    FinishReplacement,
    GiveUpTemplate,
    ReplacementStep,
    ReplacePods,
    StartReplacement,
)
from omni_operator.status.observed.timestamps import format_timestamp

MADE_OF = ("template", "resources", "rayStartParams")  # what KubeRay makes a pod of


async def replace_pods(cluster: Cluster, namespace: str, step: ReplacementStep, rendered: Body, now: datetime) -> Body:
    """Carry out a step; return the RayCluster afterwards.

    Args:
        rendered: the group as the current spec makes it.

    Raises:
        Conflict: the RayCluster, or its worker group, is not the one that the step was decided for.
    """
    name = step.cluster.name
    body = await cluster.read(RAYCLUSTERS, namespace, name)
    if body is None or body["metadata"]["uid"] != step.cluster.uid:
        raise Conflict(f"{RAYCLUSTERS.plural} {name}: another object")
    return await cluster.patch(RAYCLUSTERS, body, change(body, step, rendered, now))


def change(body: Body, step: ReplacementStep, rendered: Body, now: datetime) -> Body:
    """Merge patch of a RayCluster. PURE.

    Raises:
        Conflict: its worker group is not the one that the step was decided for.
    """
    known = step.group
    names = rolling_names(known.name)
    if parse_raycluster(body).group(known.name) != known:
        raise Conflict(f"{RAYCLUSTERS.plural} {step.cluster.name}: its {known.name} group has changed")
    groups = copy.deepcopy(body["spec"]["workerGroupSpecs"])
    group = groups[known.index]
    before = (body["metadata"].get("annotations") or {}).get(names.before)
    annotations: dict[str, str | None] = {}
    match step:
        case StartReplacement():
            # After several changes in a row, keep the template before the first change: its pods served.
            kept = before or json.dumps({part: group[part] for part in MADE_OF if part in group}, sort_keys=True)
            annotations = {names.before: kept, names.replacing: format_timestamp(now)}
            _make_of(group, rendered)
        case ReplacePods(removed=removed):
            group["scaleStrategy"] = {"workersToDelete": list(removed)}
            if before:
                annotations = {names.replacing: format_timestamp(now)}
        case FinishReplacement():
            annotations = {names.before: None, names.replacing: None}
        case GiveUpTemplate(text=text):
            refused = f"{known.template} {text}"
            annotations = {names.before: None, names.replacing: None, names.refused: refused}
            _make_of(group, _parse(before))
        case _:
            assert_never(step)
    return {"metadata": {"annotations": annotations}, "spec": {"workerGroupSpecs": groups}}


def _parse(before: str | None) -> Body:
    """The template before a change; nothing if the annotation has something else, which anyone may have written."""
    try:
        parsed = load_json((before or "{}").encode())
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _make_of(group: Body, source: Body) -> None:
    group.update({part: source[part] for part in MADE_OF if part in source})
