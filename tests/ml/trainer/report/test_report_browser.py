"""The report in a real browser, on a wide and a narrow screen, by the DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer import report

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-port=0",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-allow-origins=*",
]  # fmt: skip
FACTS = """JSON.stringify({
  images: [...document.images].map(i => i.naturalWidth),
  plots: [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().height),
  plots_painted: [...document.querySelectorAll('figure svg')].map(s => s.getBBox().width),
  summary: document.querySelector('.summary').textContent,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  fetched: performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith('data:')),
})"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 400])
async def test_a_browser_shows_everything_without_an_error(run: Path, tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: in CI the report must be opened in a browser (apt-get install chromium)")
        pytest.skip("no Chromium on this machine: install it (Debian: apt-get install chromium) to open the report")
    page = report.write(run)
    profile = tmp_path / "profile"
    process = subprocess.Popen(
        [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900", "about:blank"],
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
    assert len(facts["images"]) == 6
    assert min(facts["images"]) > 0
    assert len(facts["plots"]) == 6
    assert min(facts["plots"]) > 50
    assert min(facts["plots_painted"]) > 50
    assert facts["summary"].startswith("The held-out reward went from")
    assert facts["overflow"] <= 0
    assert facts["fetched"] == []


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
