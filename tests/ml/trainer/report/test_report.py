"""The report: parsed at the door, whole after an interruption, and fine in a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from verl_omni.trainer import report
from verl_omni.trainer.report.load import merged
from verl_omni.trainer.run_folder import RunFolder, Sample

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-port=0",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-allow-origins=*",
]  # fmt: skip
FACTS = """JSON.stringify({
  images: [...document.images].map(i => i.naturalWidth),
  plots: [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().height),
  summary: document.querySelector('.summary').textContent,
})"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "demo")
    folder.start(OmegaConf.create({"trainer": {"total_training_steps": 4}}), resumed_from=None)
    for step in range(5):
        line: dict[str, Any] = {"step": step, "weights/version": step}
        if step:
            line |= {"reward/mean": 0.1 * step, "reward/std": 0.1, "rollout_corr/mean_abs_diff": 1e-8}
            line |= {f"timing_s/{name}": 1.0 for name in ("generate", "update", "sync", "step")}
        if step % 2 == 0:
            line |= {"val/reward/mean": 0.2 * step, "val/reward/stderr": 0.02, "val/n": 9, "val/correct/mean": 0.5}
            image = torch.full((3, 8, 8), 40 * step, dtype=torch.uint8)
            folder.samples(step, [Sample("a <b>cat</b>", 7, 0.1 * step, image)])
        folder.step(line)
    return folder.path


@given(st.lists(st.integers(0, 9), max_size=20))
@settings(deadline=None)
def test_of_a_step_made_again_the_last_line_counts(steps: list[int]) -> None:
    text = "".join(json.dumps({"step": step, "place": place}) + "\n" for place, step in enumerate(steps))
    found = merged(text + '{"step": 3, "cut')
    assert [line["step"] for line in found] == sorted(set(steps))
    assert all(line["place"] == max(p for p, s in enumerate(steps) if s == line["step"]) for line in found)


def test_the_summary_is_in_words(run: Path) -> None:
    text = report.write(run).read_text()
    assert "The held-out reward went from 0.000 to 0.800 in 4 steps: +0.800, 28.3 standard errors." in text
    assert "a &lt;b&gt;cat&lt;/b&gt;" in text and "<b>cat" not in text
    assert "In every step the published weight version equals the step." in text
    assert 'src="http' not in text and "<script" not in text and '<link rel="stylesheet' not in text


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    text = report.write(tmp_path).read_text()
    assert "0 training steps; nothing was evaluated" in text and "No pictures were kept." in text


def test_a_line_without_a_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"reward": 1}\n')
    with pytest.raises(ValueError, match="has no step"):
        report.write(tmp_path)


async def test_a_browser_shows_everything_without_an_error(run: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: in CI the report must be opened in a browser (apt-get install chromium)")
        pytest.skip("no Chromium on this machine: install it (Debian: apt-get install chromium) to open the report")
    page = report.write(run)
    profile = tmp_path / "profile"
    process = subprocess.Popen(
        [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort")
        facts, errors = await _open(port, page.as_uri())
    finally:
        process.terminate()
        process.wait(20)
    assert errors == []
    assert facts["images"] and all(width > 0 for width in facts["images"])
    assert len(facts["plots"]) == 4 and all(height > 50 for height in facts["plots"])
    assert facts["summary"].startswith("The held-out reward went from")


async def _port(file: Path) -> int:
    async with asyncio.timeout(60):
        while not (file.exists() and file.read_text().strip()):
            await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])


async def _open(port: int, address: str) -> tuple[dict[str, Any], list[str]]:
    """Open a page by the DevTools protocol; facts about it, and what went to the console as an error."""
    import httpx
    from websockets.asyncio.client import connect

    tabs = httpx.get(f"http://127.0.0.1:{port}/json").json()
    tab = next(each for each in tabs if each["type"] == "page")
    errors: list[str] = []
    async with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket, asyncio.timeout(60):
        number = 0

        async def call(method: str, until: str | None = None, **parameters: Any) -> Any:
            nonlocal number
            number += 1
            await socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
            answer = None
            while answer is None or until is not None:
                message = json.loads(await socket.recv())
                kind = message.get("method")
                if kind == "Runtime.exceptionThrown" or (
                    kind == "Log.entryAdded" and message["params"]["entry"]["level"] == "error"
                ):
                    errors.append(json.dumps(message["params"]))
                if message.get("id") == number:
                    answer = message
                if kind == until:
                    until = None
            return answer["result"]

        for domain in ("Page", "Runtime", "Log"):
            await call(f"{domain}.enable")
        await call("Page.navigate", until="Page.loadEventFired", url=address)
        found = await call("Runtime.evaluate", expression=FACTS, returnByValue=True)
    return json.loads(found["result"]["value"]), errors
