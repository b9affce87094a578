"""`ScorerDeaths`: which scorers ended the process of a reward worker, which Ray then starts again.

A scorer may end the process that it runs in: native code crashes, or memory runs out. Files outlive the process, so the
next one knows which scorer was running: it counts that scorer's deaths, and does not call it after `LIMIT` of them.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from urllib.parse import quote

LIMIT = 3  # deaths of one scorer in one reward worker, after which it is not called
RESTARTS = 10  # starts of a reward worker after its first, and attempts of a call, whichever scorers end it
_RUNNING = "running."
_DEATHS = "deaths."
_TOGETHER = "together"  # exists once the process ended while several scorers ran


class ScorerDeaths:
    """Counts the deaths of one reward worker's process, by the scorer that ran.

    If several scorers ran, none is counted, and from then on one call runs at a time, so that the next death has one
    cause.

    Args:
        folder: of this reward worker, on its machine; the same after each start.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        interrupted = sorted(folder.glob(f"{_RUNNING}*"))
        if len(interrupted) == 1:
            with self._file(_DEATHS, interrupted[0].name.removeprefix(_RUNNING)).open("ab") as deaths:
                deaths.write(b".")  # their number is the file's size, which a crash cannot garble
        elif interrupted:
            (folder / _TOGETHER).touch()
        for file in interrupted:
            file.unlink()
        self._alone = asyncio.Lock() if (folder / _TOGETHER).exists() else None
        self._calls: Counter[str] = Counter()

    def problem(self, scorer: str) -> str | None:
        """Why a scorer is not called any more; None if it may be."""
        file = self._file(_DEATHS, quote(scorer, safe=""))
        if not file.exists() or file.stat().st_size < LIMIT:
            return None
        return (
            f"the reward worker's process ended {file.stat().st_size} times while it ran; look for a crash or an "
            "out-of-memory kill in the worker's log"
        )

    @asynccontextmanager
    async def running(self, scorer: str) -> AsyncIterator[None]:
        """Around each call of a scorer."""
        file = self._file(_RUNNING, quote(scorer, safe=""))
        async with self._alone or nullcontext():
            self._calls[scorer] += 1
            if self._calls[scorer] == 1:
                self._folder.mkdir(exist_ok=True)  # whatever cleans old temporary files may have removed it
                file.touch()
            try:
                yield
            finally:
                self._calls[scorer] -= 1
                if not self._calls[scorer]:
                    file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the files, at the end of a run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, kind: str, name: str) -> Path:
        return self._folder / f"{kind}{name}"
