"""The server of the tests of reports."""

from collections.abc import AsyncIterator

import pytest

from control.handlers.report_server import ReportServer
from omni_operator.handlers.http_server import serve
from omni_operator.reports.endpoint import BODY_LIMIT


@pytest.fixture
async def server() -> AsyncIterator[ReportServer]:
    started = ReportServer()
    async with serve(started.endpoint().routes(), 0, BODY_LIMIT, "127.0.0.1") as port:
        started.port = port
        yield started
