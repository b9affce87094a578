"""Prometheus and promtool: the installed programs, or Debian's package, unpacked and not installed."""

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from e2e.cluster import deadlines
from e2e.cluster.errors import DeadlinePassed
from e2e.cluster.paths import cache
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import Say
from e2e.debian_package import unpack

T = TypeVar("T")
PROGRAMS = ("prometheus", "promtool")
# Scrapes that succeed until what was exported before must be there: exporters write every few seconds.
SCRAPES = 120
SCRAPE_S = 3  # interval and timeout; on a busy machine a page takes more than a second


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the two programs are."""

    prometheus: Path
    promtool: Path

    def check(self, page: str) -> str:
        """What promtool finds wrong with a page of metrics; nothing if all is well."""
        done = subprocess.run(
            [self.promtool, "check", "metrics"],
            input=page,
            capture_output=True,
            text=True,
            timeout=deadlines.COMMAND,
            check=False,
        )
        return (done.stdout + done.stderr).strip() if done.returncode or done.stderr else ""


def ensure(say: Say = print, folder: Path | None = None) -> Programs:
    """The programs; fetched where the machine has none.

    Raises:
        ToolMissing: there is neither the programs nor Debian's archive.
    """
    installed = [shutil.which(name) for name in PROGRAMS]
    if all(installed):
        return Programs(*(Path(str(path)) for path in installed))
    kept = (folder or cache()) / "prometheus"
    unpack("prometheus", kept, "20 MB", say)
    return Programs(*(kept / "usr" / "bin" / name for name in PROGRAMS))


@dataclass(frozen=True, slots=True)
class Running:
    """A Prometheus that scrapes."""

    server: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now."""
        answer = httpx2.get(f"{self.server}/api/v1/query", params={"query": expression}, timeout=10, trust_env=False)
        answer.raise_for_status()
        series: list[dict[str, Any]] = answer.json()["data"]["result"]
        return series

    def scrapes(self) -> float:
        """How many scrapes have succeeded, of the target that has had the most."""
        series = self.query("max(sum_over_time(up[1d]))")
        return float(series[0]["value"][1]) if series else 0.0

    def wait_until(self, what: str, probe: Callable[[], T | None]) -> T:
        """The first value of `probe` that is neither None nor False, within `SCRAPES` scrapes.

        Raises:
            DeadlinePassed: there is none, or nothing is scraped any more.
        """
        return deadlines.wait_for_progress(what, SCRAPES, self.scrapes, probe)

    def await_value(self, expression: str) -> float:
        """The value of an expression of one sample, once there is one.

        Raises:
            DeadlinePassed: there is none.
        """
        series = self.wait_until(expression, lambda: self.query(expression) or None)
        assert len(series) == 1, series
        return float(series[0]["value"][1])

    def await_equal(self, expression: str, value: float) -> None:
        """Wait until the expression's one sample has a value: a scrape shows what was exported some seconds before.

        Raises:
            DeadlinePassed: it has none, or another one; the message has the last.
        """
        last = float("nan")

        def equal() -> bool:
            nonlocal last
            last = self.await_value(expression)
            return last == value

        try:
            self.wait_until(f"{expression} == {value}", equal)
        except DeadlinePassed as error:
            raise DeadlinePassed(f"{error}; it is {last}") from error

    def await_data(self, expressions: Iterable[str]) -> None:
        """Wait until each expression has a sample.

        Raises:
            AssertionError: some have none; the message lists them.
        """
        without = list(expressions)

        def none_left() -> bool:
            without[:] = [expression for expression in without if not self.query(expression)]
            return not without

        try:
            self.wait_until("every query to return data", none_left)
        except DeadlinePassed as error:
            raise AssertionError(f"queries without data: {without}") from error

    def rules(self) -> dict[str, str]:
        """Health of each alert rule that is loaded: `ok` once it was evaluated without an error."""
        answer = httpx2.get(f"{self.server}/api/v1/rules", timeout=10, trust_env=False)
        answer.raise_for_status()
        groups = answer.json()["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}


def of_pod_monitor(monitor: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A scrape as the Prometheus operator makes it of a PodMonitor with labels and one endpoint. PURE.

    Debian's Prometheus cannot ask the API server for pods, so their addresses are in it.

    Args:
        pods: pods in the PodMonitor's namespace.
    """
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    targets = []
    for pod in pods:
        meta = pod["metadata"]
        wanted = monitor["spec"]["selector"]["matchLabels"]
        ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
        if not wanted.items() <= meta["labels"].items():
            continue
        pod_labels = {
            "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name): text for name, text in meta["labels"].items()
        }
        targets += [
            {
                "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
                "labels": {"pod": meta["name"], **pod_labels},
            }
            for port in ports
            if port.get("name") == endpoint["port"]
        ]
    rules = [
        {"source_labels": rule["sourceLabels"], "target_label": rule["targetLabel"]} for rule in endpoint["relabelings"]
    ]
    every = endpoint["interval"]
    return {"scrape_interval": every, "scrape_timeout": every, "static_configs": targets, "relabel_configs": rules}


@contextmanager
def scraping(
    programs: Programs,
    target: str,
    folder: Path,
    *,
    labels: Mapping[str, str] | None = None,
    honor_labels: bool = False,
    rules: Path | None = None,
) -> Iterator[Running]:
    """A Prometheus that scrapes `host:port` every few seconds; it ends with the context.

    Args:
        labels: labels of the target, as a PodMonitor gives them.
        honor_labels: as in a PodMonitor.
        rules: a file of alert rules, which are evaluated every second.
    """
    scraped = {"targets": [target], "labels": dict(labels or {})}
    with running(programs, {"honor_labels": honor_labels, "static_configs": [scraped]}, folder, rules) as server:
        yield server


@contextmanager
def running(
    programs: Programs, scrape: Mapping[str, Any], folder: Path, rules: Path | None = None
) -> Iterator[Running]:
    """A Prometheus with the settings of a scrape; as `scraping`."""
    (port,) = free_ports(1, random.Random())
    settings = {
        "global": {
            "scrape_interval": f"{SCRAPE_S}s",
            "scrape_timeout": f"{SCRAPE_S}s",
            "evaluation_interval": "1s",
        },
        "scrape_configs": [{"job_name": "omni", **scrape}],
        "rule_files": [str(rules)] if rules else [],
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [
        str(programs.prometheus),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    server = Running(f"http://127.0.0.1:{port}")

    def ready() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")[-2000:]
        try:
            return httpx2.get(f"{server.server}/-/ready", timeout=5, trust_env=False).status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False

    try:
        deadlines.wait_until("Prometheus to be ready", deadlines.API_READY, ready)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(deadlines.PROCESS_END)
        finally:
            process.kill()
            process.wait()
