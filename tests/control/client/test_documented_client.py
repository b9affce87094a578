"""The Python example of docs/reference/cli.md runs as it is written."""

import re
from pathlib import Path

import pytest

from control.client.fake_server import CLUSTER, FakeServer, run_program
from control.client.job_objects import DONE, MADE, PODS, pod

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_docs_runs(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    code = code.replace('"examples/', f'"{ROOT}/examples/').replace('"runs/', f'"{tmp_path}/runs/')
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").touch()
    server.objects[PODS] = 200, {"items": [pod("blue-fetch-x")]}
    server.sockets[f"{MADE}/exec"] = run_program(run)
    reply = server.reply

    def ended(target: str) -> tuple[int, dict[str, object]]:
        job = server.jobs.get("red-grpo-cluster")
        if job is not None:
            job["metadata"]["uid"] = "u"
            job["status"] = {**DONE, "children": {"rayClusterUID": CLUSTER}}
        return reply(target)

    monkeypatch.setattr(server, "reply", ended)
    exec(compile(code, "docs/reference/cli.md", "exec"), {})
    assert "Succeeded" in capsys.readouterr().out
    assert (tmp_path / "runs" / "red-grpo-cluster" / "report.html").exists()
