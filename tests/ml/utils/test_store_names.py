"""A store decides the names of its objects, and none may lead out of the folder that they are copied to."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typing_extensions import override

from verl_omni.utils.stores import Access, StoreError, download

LISTING = """<?xml version="1.0"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>models</Name><IsTruncated>false</IsTruncated>
<Contents><Key>sd3/{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>7</Size></Contents>
</ListBucketResult>"""
Serve = Callable[[str], Access]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts an S3 server with one object, `sd3/NAME`, which no file system's rules apply to."""
    started: list[tuple[ThreadingHTTPServer, threading.Thread]] = []
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")

    def begin(name: str) -> Access:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                folder = unquote(asked.path).rstrip("/") == "/models/sd3"
                body = LISTING.format(name=name).encode() if "list-type" in asked.query else b"content"
                self.send_response(404 if folder and "list-type" not in asked.query else 200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            @override
            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        started.append((server, thread))
        return Access(f"http://127.0.0.1:{server.server_port}", "us-east-1")

    yield begin
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("name", ["../../out.json", "a/../../out.json", ".."])
def test_an_object_whose_name_leads_out_of_the_folder_is_refused(serve: Serve, tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match=r"has the object '.*\.\..*', whose name leads out of the folder"):
        download("s3://models/sd3", tmp_path / "a" / "b", serve(name))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_dots_in_a_name_are_part_of_it(serve: Serve, tmp_path: Path) -> None:
    assert download("s3://models/sd3", tmp_path, serve("a..b/..c")) == 1
    assert (tmp_path / "a..b" / "..c").read_bytes() == b"content"
