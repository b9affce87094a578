"""The chart's Grafana dashboards: their queries, and the ConfigMaps that Helm makes of them."""

import json

import pytest

from control.chart.rendered_chart import Render, of_kind
from e2e import dashboards
from tools import metrics_page

NAMES = ("omni-job", "omni-operator")


def test_there_are_two_dashboards() -> None:
    assert [path.stem for path in dashboards.paths()] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_titles_queries_and_places_of_their_own(name: str) -> None:
    board = dashboards.load(name)
    assert board["uid"] == name and board["title"] and board["schemaVersion"] >= 36
    panels = board["panels"]
    assert len(panels) > 10
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["targets"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert taken.isdisjoint(cells) and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_variables_offer_namespaces_and_jobs() -> None:
    assert [choice.panel for choice in dashboards.choices("omni-job")] == ["namespace", "job"]
    for choice in dashboards.choices("omni-job"):
        assert metrics_page.NAME.search(choice.expression), choice
        assert metrics_page.unknown_names(choice.expression) == set(), choice


@pytest.mark.parametrize("name", NAMES)
def test_queries_use_metrics_of_the_reference_and_variables_of_the_dashboard(name: str) -> None:
    known = {variable["name"] for variable in dashboards.load(name)["templating"]["list"]} | {"__rate_interval"}
    for query in dashboards.queries(name):
        assert metrics_page.NAME.search(query.expression), query
        assert metrics_page.unknown_names(query.expression) == set(), query
        assert set(dashboards.VARIABLE.findall(query.expression)) <= known, query
        if name == "omni-job":  # of one job, whichever metrics it reads
            assert query.expression.count('namespace="$namespace"') == query.expression.count('="$job"') >= 1, query


def test_metrics_of_ray_that_the_dashboards_show_exist() -> None:
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    assert set(metrics_page.OF_RAY) <= {f"ray_{name}" for name in METRICS_GAUGES}


@pytest.mark.cluster
def test_the_dashboards_are_optional_config_maps(chart: Render) -> None:
    assert of_kind(chart(), "ConfigMap") == []
    bodies = chart("--set=metrics.dashboards.enabled=true,metrics.dashboards.labels.team=ml")
    maps = of_kind(bodies, "ConfigMap")
    assert [body["metadata"]["name"] for body in maps] == [
        "omni-omni-operator-job-dashboard",
        "omni-omni-operator-operator-dashboard",
    ]
    for body, name in zip(maps, NAMES, strict=True):
        labels = body["metadata"]["labels"]
        assert (labels["grafana_dashboard"], labels["team"]) == ("1", "ml"), "Grafana's sidecar looks for this label"
        assert json.loads(body["data"][f"{name}.json"]) == dashboards.load(name)
