"""Values that the API server would refuse in the middle of an installation: Helm refuses them before that."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from control.chart.rendered_chart import Body, Given, Render, container, operator_pod
from e2e import helm as tool
from e2e.cluster import deadlines
from e2e.cluster.errors import CommandFailed
from e2e.cluster.processes import run

pytestmark = pytest.mark.cluster

# By the schema.
WRONG: Body = {
    "nameOverride": "a" * 80,
    "fullnameOverride": "1abc",
    "image": {"tag": "a b", "digest": "abc", "pullPolicy": None},
    "replicas": 3,
    "log": {"format": "xml"},
    "metrics": {"port": 80},
    "watch": {"namespaces": ["One"]},
    "terminationGracePeriodSeconds": 5,
    "imagePullSecrets": ["pull"],
    "crds": {"install": None},
    "jobs": {"image": "a b", "rayVersion": "latest", "podPolicy": {"volumeTypes": ["hostPath"]}},
    "rbac": None,
    "serviceAccount": {"name": "Bad_Name", "annotations": {"a": True}},
    "networkPolicy": {"apiServerPorts": None, "metricsFrom": [{"podSelectr": {}}]},
    "tuning": {"canaryDeadlineSeconds": 60, "resyncSeconds": 0, "leaseSeconds": 2},
    "commonLabels": {"bad key!": "x"},
    "podLabels": {"a": "not a label"},
    "nodeSelector": ["gpu"],
    "tolerations": [{"kye": "a"}],
    "affinity": {"nodeAffinty": {}},
    "topologySpreadConstraints": [{"maxSkew": "1", "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "priorityClassName": "Bad Name",
    "extraEnvFrom": [{}],
    "extraVolumes": [{"configMap": {"name": "a"}}],
    "extraVolumeMounts": [{"name": "a"}],
    "podSecurityContext": {"runAsUser": "ray", "runAsUsr": 1},
    "securityContext": {"readOnlyRootFilesystem": 7},
    "resources": {"requests": {"cpu": "lots"}, "limits": "512Mi"},
    "podDisruptionBudget": {"minAvailable": 1},
}
PLACES = (
    "'': additional properties 'podDisruptionBudget' not allowed",
    "'': missing property 'rbac'",
    "'/nameOverride': maxLength: got 80, want 40",
    "'/fullnameOverride'",
    "'/image': missing property 'pullPolicy'",
    "'/image/tag'",
    "'/image/digest'",
    "'/replicas'",
    "'/log/format'",
    "'/metrics/port'",
    "'/watch/namespaces/0'",
    "'/terminationGracePeriodSeconds'",
    "'/imagePullSecrets/0': got string, want object",
    "'/crds': missing property 'install'",
    "'/jobs/image'",
    "'/jobs/rayVersion'",
    "'/jobs/podPolicy/volumeTypes/0'",
    "'/serviceAccount/name'",
    "'/serviceAccount/annotations/a': got boolean, want string",
    "'/networkPolicy': missing property 'apiServerPorts'",
    "'/networkPolicy/metricsFrom/0': additional properties 'podSelectr' not allowed",
    "'/tuning/canaryDeadlineSeconds'",
    "'/tuning/resyncSeconds'",
    "'/tuning/leaseSeconds'",
    "'/commonLabels': additional properties 'bad key!' not allowed",
    "'/podLabels/a'",
    "'/nodeSelector': got array, want object",
    "'/tolerations/0': additional properties 'kye' not allowed",
    "'/affinity': additional properties 'nodeAffinty' not allowed",
    "'/topologySpreadConstraints/0/maxSkew': got string, want integer",
    "'/priorityClassName'",
    "'/extraEnvFrom/0'",
    "'/extraVolumes/0'",
    "'/extraVolumeMounts/0'",
    "'/podSecurityContext/runAsUser'",
    "'/podSecurityContext': additional properties 'runAsUsr' not allowed",
    "'/securityContext/readOnlyRootFilesystem'",
    "'/resources/requests/cpu'",
    "'/resources/limits': got string, want object",
)
ONE = {"name": "A", "value": "1"}
# Each value is right by itself.
CONTRADICTIONS: Body = {
    "image": {"repository": "reg/omni:1"},
    "reports": {"port": 8080},
    "tuning": {"stopSeconds": 30},
    "extraEnv": [ONE, ONE, {"name": "OMNI_OPERATOR_HTTP", "value": "1"}, {"name": "B", "value": "1", "valueFrom": {}}],
    "extraVolumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/v"}],
    "commonLabels": {"helm.sh/chart": "x", "a": "b"},
    "podLabels": {"app.kubernetes.io/name": "x", "a": "c"},
}
PROBLEMS = (
    'image.repository is "reg/omni:1": write REGISTRY/NAME',
    "reports.port and metrics.port are both 8080",
    "stopSeconds is 30 and terminationGracePeriodSeconds 30",
    "extraEnv: A is there twice",
    "extraEnv: OMNI_OPERATOR_HTTP is a setting of the operator",
    "extraEnv: B has both value and valueFrom",
    "extraVolumes: v is there twice",
    "extraVolumeMounts: no volume w in extraVolumes",
    "extraVolumeMounts: /v is there twice",
    "commonLabels: the chart sets helm.sh/chart itself",
    "podLabels: the chart or commonLabels sets app.kubernetes.io/name",
    "podLabels: the chart or commonLabels sets a ",
)


def test_every_wrong_value_is_named_with_its_place(helm: Path, given: Given) -> None:
    names = [*WRONG]
    parts = (names[::3], names[1::3], names[2::3])  # of a long message, the end is read
    message = "".join(tool.refusal(helm, given({name: WRONG[name] for name in part})) for part in parts)
    assert [path for path in PLACES if f"at {path}" not in message] == [], message


def test_values_that_contradict_one_another_are_all_named(helm: Path, given: Given) -> None:
    message = tool.refusal(helm, given(CONTRADICTIONS))
    assert [problem for problem in PROBLEMS if problem not in message] == [], message


def test_a_release_whose_name_no_service_can_have_is_refused(helm: Path) -> None:
    command = [str(helm), "template", "1st", str(tool.CHART), f"--kube-version={tool.KUBERNETES}"]
    with pytest.raises(CommandFailed, match="the name 1st-omni-operator, which no Service can have: set fullnameO"):
        run(command, deadline=deadlines.COMMAND)
    run([*command, "--set=fullnameOverride=first"], deadline=deadlines.COMMAND)


def test_a_list_or_map_that_is_null_is_the_default(chart: Render, given: Given) -> None:
    names = ("imagePullSecrets", "tolerations", "nodeSelector", "tuning", "extraEnv", "commonLabels", "affinity")
    assert chart(given(dict.fromkeys(names))) == chart()


def test_a_repository_may_have_a_registry_with_a_port(chart: Render, given: Given) -> None:
    values = {
        "image": {"repository": "[::1]:5000/team/omni_x.y"},
        "resources": {"limits": {"memory": "1.5Gi", "a/c": 1}},
    }
    only = container(chart(given(values)))
    assert only["image"].startswith("[::1]:5000/team/omni_x.y:")
    assert only["resources"]["limits"] == {"memory": "1.5Gi", "a/c": 1}


def test_names_that_look_like_numbers_stay_names(helm: Path, given: Given) -> None:
    """Kubernetes allows them, and YAML reads `2024` as a number, which the API server refuses."""
    values = {
        "nameOverride": "1",
        "fullnameOverride": "omni",
        "serviceAccount": {"name": "2"},
        "priorityClassName": "3",
        "watch": {"namespaces": ["4"]},
    }
    command = [
        str(helm),
        "template",
        "5",
        str(tool.CHART),
        "--namespace=6",
        f"--kube-version={tool.KUBERNETES}",
        "--set=networkPolicy.enabled=true,metrics.podMonitor.enabled=true,metrics.alerts.enabled=true,replicas=2",
        "--set=metrics.dashboards.enabled=true",
        given(values),
    ]
    bodies = [body for body in YAML(typ="safe").load_all(run(command, deadline=deadlines.COMMAND)) if body]
    assert {body["metadata"].get("namespace") for body in bodies} == {"4", "6", None}
    pod = operator_pod(bodies)["spec"]
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("2", "3")
    wrong = [
        (body["kind"], key)
        for body in bodies
        for key, value in body["metadata"]["labels"].items()
        if not isinstance(value, str)
    ]
    subjects = [subject for body in bodies if body["kind"].endswith("Binding") for subject in body["subjects"]]
    assert wrong == [] and len(subjects) == 3
    assert {(subject["name"], subject["namespace"]) for subject in subjects} == {("2", "6")}
