"""The report in a real browser, on a desktop and on a phone, through the DevTools protocol."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from verl_omni.trainer import report
from verl_omni.trainer.run.run_folder import RunFolder, ShownSample

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-allow-origins=*",
]
FACTS = """JSON.stringify({
  images: [...document.images].map(i => i.naturalWidth),
  plots: [...document.querySelectorAll('.canvas')].map(c => c.querySelector('.plot-container .main-svg')?.clientWidth),
  space: [...document.querySelectorAll('.canvas')].map(c => c.parentElement.clientWidth),
  traces: [...document.querySelectorAll('.canvas')].map(c => c.querySelectorAll('.scatterlayer .trace, .bars').length),
  legends_over_plots: [...document.querySelectorAll('.canvas')].filter(c => {
    const legend = c.querySelector('.infolayer .legend'), area = c.querySelector('.nsewdrag');
    if (!legend || !area) return false;
    return legend.getBoundingClientRect().top < area.getBoundingClientRect().bottom;
  }).length,
  legends: document.querySelectorAll('.infolayer .legend').length,
  summary: document.querySelector('.summary').textContent,
  prompts: [...document.querySelectorAll('.prompt')].map(p => p.getBoundingClientRect().height),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  fetched: performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith('data:')),
})"""
CENTRE = """JSON.stringify((() => {
  const area = document.querySelector('.canvas .nsewdrag');
  area.scrollIntoView({block: 'center'});
  const box = area.getBoundingClientRect();
  return {x: box.x + box.width / 2, y: box.y + box.height / 2};
})())"""
HOSTILE = ("supercalifragilistic" * 40, "very " * 900 + "long", "<script>throw 1</script>", "قطة حمراء", "a\n\nb", "")
HOVERED = "document.querySelector('.canvas .hoverlayer')?.textContent ?? ''"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_report_fits_the_screen_and_shows_values_on_hover(run: Path, tmp_path: Path, width: int) -> None:
    RunFolder(run).samples(4, [*_hostile_prompts()], 24)
    page = report.write(run)
    facts, hovered, errors = await _browse(page, width, tmp_path)
    assert errors == []
    assert len(facts["images"]) == 4 + len(HOSTILE)
    assert max(facts["prompts"]) < 200, "a long prompt scrolls"
    assert min(facts["images"]) > 0
    assert facts["plots"] == facts["space"]
    assert len(facts["plots"]) == 8
    assert min(facts["plots"]) > 300
    assert min(facts["traces"]) > 0
    assert facts["legends"] > 1
    assert facts["legends_over_plots"] == 0
    assert hovered.startswith("step 2")
    assert "training reward : 0.2" in hovered
    assert "held-out reward : 0.4" in hovered
    assert facts["summary"].startswith("The held-out reward rose from")
    assert facts["overflow"] <= 0
    assert facts["fetched"] == []


def _hostile_prompts() -> Iterator[ShownSample]:
    for number, prompt in enumerate(HOSTILE):
        yield ShownSample(prompt, 7 + number, 0.5, torch.zeros(3, 8, 8, dtype=torch.uint8))


async def _browse(page: Path, width: int, folder: Path) -> tuple[dict[str, Any], str, list[str]]:
    """What `_open` returns, from a separate browser; without Chromium the test is skipped, and in CI it fails."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: in CI the report must be opened in a browser (apt-get install chromium)")
        pytest.skip("no Chromium on this machine: install it (Debian: apt-get install chromium) to open the report")
    profile = folder / "profile"
    process = subprocess.Popen(
        [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort")
        return await _open(port, page.as_uri(), width)
    finally:
        process.terminate()
        process.wait(20)


async def _port(file: Path) -> int:
    async with asyncio.timeout(60):
        while not (file.exists() and file.read_text().strip()):
            await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])


async def _open(port: int, address: str, width: int) -> tuple[dict[str, Any], str, list[str]]:
    """Open a page on a screen of a width; facts about it, the text at the centre of its first plot, and errors."""
    import httpx2
    from websockets.asyncio.client import connect

    tabs = httpx2.get(f"http://127.0.0.1:{port}/json").json()
    tab = next(target for target in tabs if target["type"] == "page")
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

        async def value(expression: str) -> Any:
            result = await call("Runtime.evaluate", expression=expression, returnByValue=True)
            return result["result"]["value"]

        for domain in ("Page", "Runtime", "Log"):
            await call(f"{domain}.enable")
        screen = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": False}
        await call("Emulation.setDeviceMetricsOverride", **screen)
        await call("Page.navigate", until="Page.loadEventFired", url=address)
        facts = json.loads(await value(FACTS))
        await call("Input.dispatchMouseEvent", type="mouseMoved", **json.loads(await value(CENTRE)))
        while not (hovered := await value(HOVERED)):
            await asyncio.sleep(0.05)
    return facts, hovered, errors
