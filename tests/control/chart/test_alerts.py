"""The chart's alert rules: what each has, whether it fires, and the object that Helm makes of them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from control.chart.rendered_chart import Body, Render, of_kind, one
from e2e import helm as tool
from e2e import prometheus
from e2e.cluster import deadlines
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.plan import ClusterSettings
from tools import metrics_page

RULES = tool.CHART / "monitoring" / "alerts.yaml"
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "operate" / "operator.md"
UNIT_TESTS = Path(__file__).with_name("alerts.test.yaml")
WANTED = {
    "AttemptsExhausted",
    "OperatorNotLeading",
    "OperatorWatchStale",
    "ProgressStalled",
    "RewardCollapsed",
    "RolloutsNotReady",
    "WeightLagHigh",
}


def rules() -> list[Body]:
    return [rule for group in YAML(typ="safe").load(RULES)["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return prometheus.ensure().promtool
    except ToolMissing as error:
        leave_out(error)


def run(program: Path, *arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=deadlines.COMMAND, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_alert_has_a_severity_a_summary_and_a_section() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Alerts\n")[2].partition("\n## ")[0]
    headings = [line.removeprefix("### ") for line in section.splitlines() if line.startswith("### ")]
    assert {rule["alert"] for rule in rules()} == WANTED == set(headings)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["runbook_url"] == f"docs/operate/operator.md#{rule['alert'].lower()}"


def test_runbooks_read_the_log_of_the_pods_that_the_training_program_runs_in() -> None:
    job = load_job(ROOT / "tests" / "golden" / "two-pools" / "job.yaml").job
    spec = plan.render_attempt(job, 1, ClusterSettings(image="i"))["spec"]
    needed = set(json.loads(spec["entrypointResources"]))
    (role,) = (
        group["groupName"]
        for group in spec["rayClusterSpec"]["workerGroupSpecs"]
        if needed <= group["resources"].keys()
    )
    text = PAGE.read_text(encoding="utf-8")
    for command in re.findall(r"`kubectl logs ([^`]*diffusionrl.io/job[^`]*)`", text):
        assert f"ray.io/group={role}" in command, command
    _, _, stalled = text.partition("## ProgressStalled")
    assert "`drl logs JOB --tail 50`" in stalled.partition("## ")[0], "which prints the output of these pods"


def test_every_alert_uses_metrics_of_the_reference_only() -> None:
    for rule in rules():
        assert metrics_page.NAME.search(rule["expr"])
        assert metrics_page.unknown_names(rule["expr"]) == set(), rule["alert"]


def test_every_alert_has_a_unit_test_in_which_it_fires() -> None:
    cases = [case for test in YAML(typ="safe").load(UNIT_TESTS)["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == WANTED
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == WANTED, "and one in which it does not"


@pytest.mark.cluster
def test_prometheus_accepts_the_rules_and_they_fire_when_they_should(promtool: Path, tmp_path: Path) -> None:
    code, output = run(promtool, "check", "rules", RULES)
    assert (code, "7 rules found" in output) == (0, True), output
    code, output = run(promtool, "test", "rules", UNIT_TESTS)
    assert code == 0, output
    # The tests do notice a wrong rule.
    text = RULES.read_text(encoding="utf-8")
    (tmp_path / "alerts.yaml").write_text(text.replace("and changes(", "or changes("), encoding="utf-8")
    shutil.copy(UNIT_TESTS, tmp_path)
    copied = tmp_path / UNIT_TESTS.name
    name = "../../../charts/omni-operator/monitoring/alerts.yaml"
    copied.write_text(copied.read_text(encoding="utf-8").replace(name, "alerts.yaml"), encoding="utf-8")
    code, output = run(promtool, "test", "rules", copied)
    assert code != 0 and "WeightLagHigh" in output


@pytest.mark.cluster
def test_the_prometheus_rule_is_optional_and_has_the_rules(chart: Render) -> None:
    assert of_kind(chart(), "PrometheusRule") == []
    url = "https://example.org/alerts"
    values = {"enabled": "true", "labels.release": "prom", "runbookUrl": url}
    options = [f"--set=metrics.alerts.{name}={value}" for name, value in values.items()]
    prometheus_rule = one(chart(*options), "PrometheusRule")
    assert prometheus_rule["metadata"]["labels"]["release"] == "prom"
    shipped = [rule for group in prometheus_rule["spec"]["groups"] for rule in group["rules"]]
    links = [rule["annotations"].pop("runbook_url") for rule in shipped]
    assert links == [f"{url}#{rule['alert'].lower()}" for rule in shipped]
    wanted = rules()
    for rule in wanted:
        del rule["annotations"]["runbook_url"]
    assert shipped == wanted
