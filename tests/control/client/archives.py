"""Archives that pods send to `drl fetch`, and the files that come of them."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from control.client.fake_websocket import FakeWebSocket

SUCCESS = b'{"status": "Success"}'


def sends(data: bytes, status: bytes | None = SUCCESS) -> Callable[[FakeWebSocket, list[str]], None]:
    def serve(web: FakeWebSocket, _: list[str]) -> None:
        web.send(1, data)
        if status is not None:
            web.send(3, status)
            web.close()

    return serve


def archive(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members:
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                content.name = name
                tar.addfile(content)
    return file.getvalue()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
