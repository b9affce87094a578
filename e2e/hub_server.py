"""A small Hugging Face hub on this machine: what its client asks for to create, fill and read model repositories.

Written from the client's code and the hub's documentation; the hub itself was not asked. Git LFS transfers the files
that are large or binary; their digests are checked. A commit is stored as a whole, or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from typing_extensions import override

TOKEN = "hf_test_writer"
READER = "hf_test_reader"
OWNER = "team"  # the only namespace that the tokens may create repositories in
LFS_SUFFIXES = (".safetensors", ".png", ".bin")
LFS_BYTES = 10 * 1024 * 1024
REPOSITORY = r"(?P<repository>[\w.-]+/[\w.-]+)"


class Refused(Exception):
    """An answer with an error, with further fields."""

    def __init__(self, status: int, text: str, code: str | None = None, **fields: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its title, and all files of the repository after it."""

    title: str
    files: Mapping[str, bytes]
    added: frozenset[str]

    @property
    def oid(self) -> str:
        """A digest of the content."""
        names = [(name, hashlib.sha256(content).hexdigest()) for name, content in sorted(self.files.items())]
        return hashlib.sha1(repr((self.title, names)).encode()).hexdigest()


@dataclass
class Fault:
    """What happens to the next requests whose `METHOD path` contains a text.

    Attributes:
        status: their answer; None: the request is answered as usual, after `act`.
    """

    text: str
    status: int | None
    times: int = 1
    act: Callable[[], object] = lambda: None


@dataclass
class Hub:
    """A running hub.

    Attributes:
        repositories: commits by repository, the newest last.
        visibility: public or private, by repository.
        faults: faults to inject into the next requests.
        uploads: digests of the files that clients uploaded by Git LFS.
        offered: paths that clients asked to commit.
        objects: content of Git LFS files by digest.
    """

    endpoint: str = ""
    repositories: dict[str, list[Commit]] = field(default_factory=dict)
    visibility: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables of a program that may write."""
        return {"HF_TOKEN": TOKEN}

    def create(self, repository: str, files: Mapping[str, bytes] | None = None) -> None:
        """A public repository, as a user makes one."""
        self.visibility[repository] = "public"
        self.repositories[repository] = [Commit("initial commit", dict(files or {}), frozenset())]

    def commits(self, repository: str) -> list[Commit]:
        """The commits after the first one, which creates the repository."""
        with self.lock:
            return list(self.repositories.get(repository, ())[1:])

    def files(self, repository: str) -> Mapping[str, bytes]:
        """What is in it now."""
        with self.lock:
            return self.repositories[repository][-1].files

    def head(self, repository: str) -> Commit:
        """The newest commit; raises Refused without a repository."""
        if repository not in self.repositories:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.repositories[repository][-1]


@contextmanager
def hub_server(address: str = "127.0.0.1") -> Iterator[Hub]:
    """Serve until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer((address, 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://{address}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _create(hub: Hub, handler: _Handler) -> Any:
    requested = handler.document()
    owner = requested["organization"] or OWNER
    repository = f"{owner}/{requested['name']}"
    if owner != OWNER or handler.role() != "write":
        raise Refused(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
    url = f"{hub.endpoint}/{repository}"
    if repository in hub.repositories:
        raise Refused(409, "You already created this model repo", url=url)
    hub.create(repository)
    hub.visibility[repository] = requested.get("visibility", "public")
    return {"url": url}


def _info(hub: Hub, handler: _Handler, repository: str) -> Any:
    head = hub.head(repository)
    siblings = [{"rfilename": name} for name in sorted(head.files)]
    return {
        "id": repository,
        "sha": head.oid,
        "private": hub.visibility[repository] == "private",
        "siblings": siblings,
        "tags": [],
        "downloads": 0,
    }


def _preupload(hub: Hub, handler: _Handler, repository: str) -> Any:
    head = hub.head(repository)
    handler.may_write(repository)
    modes = []
    for file in handler.document()["files"]:
        hub.offered.append(file["path"])
        mode = "lfs" if file["path"].endswith(LFS_SUFFIXES) or file["size"] > LFS_BYTES else "regular"
        content = head.files.get(file["path"])
        modes.append(
            {
                "path": file["path"],
                "uploadMode": mode,
                "shouldIgnore": False,
                "oid": None if content is None else _oid(content, mode),
            }
        )
    return {"files": modes, "commitOid": head.oid}


def _oid(content: bytes, mode: str) -> str:
    if mode == "lfs":
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _batch(hub: Hub, handler: _Handler, repository: str) -> Any:
    hub.head(repository)
    handler.may_write(repository)
    offers = []
    for item in handler.document()["objects"]:
        upload = {"href": f"{hub.endpoint}/lfs/{item['oid']}"}
        verify = {"href": f"{hub.endpoint}/lfs-verify"}
        actions = {} if item["oid"] in hub.objects else {"actions": {"upload": upload, "verify": verify}}
        offers.append({"oid": item["oid"], "size": item["size"], **actions})
    return {"transfer": "basic", "objects": offers}


def _upload(hub: Hub, handler: _Handler, oid: str) -> Any:
    content = handler.body()
    if hashlib.sha256(content).hexdigest() != oid:
        raise Refused(400, "the content does not have this digest")
    hub.objects[oid] = content
    hub.uploads.append(oid)
    return {}


def _verify(hub: Hub, handler: _Handler) -> Any:
    uploaded = handler.document()
    if len(hub.objects.get(uploaded["oid"], b"")) != uploaded["size"]:
        raise Refused(404, "no such object")
    return {}


def _commit(hub: Hub, handler: _Handler, repository: str) -> Any:
    head = hub.head(repository)
    handler.may_write(repository)
    title = ""
    files = dict(head.files)
    added = set()
    for line in handler.body().splitlines():
        entry = json.loads(line)
        value = entry["value"]
        match entry["key"]:
            case "header":
                title = value["summary"]
            case "file":
                files[value["path"]] = base64.b64decode(value["content"])
                added.add(value["path"])
            case "lfsFile":
                if value["oid"] not in hub.objects:
                    raise Refused(400, f"{value['path']}: the object was not uploaded")
                files[value["path"]] = hub.objects[value["oid"]]
                added.add(value["path"])
            case key:
                raise Refused(400, f"unknown key {key}")
    commit = Commit(title, files, frozenset(added))
    hub.repositories[repository].append(commit)
    return {"commitUrl": f"{hub.endpoint}/{repository}/commit/{commit.oid}", "commitOid": commit.oid}


def _validate(hub: Hub, handler: _Handler) -> Any:
    if not handler.document()["content"].startswith("---\n"):
        raise Refused(400, "no metadata")
    return {"errors": [], "warnings": []}


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": _oid(content, "regular")}


def _paths_info(hub: Hub, handler: _Handler, repository: str) -> Any:
    files = hub.head(repository).files
    wanted = parse_qs(handler.body().decode())["paths"]
    return [_entry(name, files[name]) for name in wanted if name in files]


def _tree(hub: Hub, handler: _Handler, repository: str) -> Any:
    return [_entry(name, content) for name, content in sorted(hub.head(repository).files.items())]


def _resolve(hub: Hub, handler: _Handler, repository: str, path: str) -> Any:
    head = hub.head(repository)
    if unquote(path) not in head.files:
        raise Refused(404, "Entry not found", "EntryNotFound")
    content = head.files[unquote(path)]
    handler.answer(200, content, {"ETag": f'"{_oid(content, "regular")}"', "X-Repo-Commit": head.oid})
    return None


ROUTES: tuple[tuple[str, Callable[..., Any]], ...] = (
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", _validate),
    (rf"POST /api/models/{REPOSITORY}/preupload/main", _preupload),
    (rf"POST /api/models/{REPOSITORY}/commit/main", _commit),
    (rf"POST /api/models/{REPOSITORY}/paths-info/main", _paths_info),
    (rf"GET /api/models/{REPOSITORY}/tree/[\w%]+", _tree),
    (rf"GET /api/models/{REPOSITORY}(/revision/\w+)?", _info),
    (rf"POST /{REPOSITORY}\.git/info/lfs/objects/batch", _batch),
    (r"PUT /lfs/(?P<oid>\w+)", _upload),
    (r"POST /lfs-verify", _verify),
    (rf"(GET|HEAD) /{REPOSITORY}/resolve/\w+/(?P<path>.+)", _resolve),
)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        """Answer a request."""
        wanted = f"{self.command} {urlsplit(self.path).path}"
        self._read: bytes | None = None
        try:
            self._fail(wanted)
            with self.hub.lock:
                if not wanted.startswith("PUT /lfs/"):  # signed URLs
                    self.role()
                for pattern, function in ROUTES:
                    if match := re.fullmatch(pattern, wanted):
                        document = function(self.hub, self, **match.groupdict())
                        break
                else:
                    raise Refused(404, f"this hub does not know {wanted}")
            if document is not None:
                self.answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})
        except Refused as error:
            self._refuse(error)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815, the names of http.server

    def role(self) -> str:
        """What the token may do; raises Refused for a wrong one."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        roles = {TOKEN: "write", READER: "read"}
        if token not in roles:
            raise Refused(401, "Invalid username or password.")
        return roles[token]

    def may_write(self, repository: str) -> None:
        """Raise Refused if the token may not."""
        if self.role() != "write":
            raise Refused(403, f"Authorization error: you can not write to {repository}.")

    def body(self) -> bytes:
        """What was sent."""
        if self._read is None:
            self._read = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return self._read

    def document(self) -> Any:
        """What was sent, as JSON."""
        return json.loads(self.body())

    def answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer."""
        self.body()  # what is not read would be taken for the next request
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, error: Refused) -> None:
        named = {"X-Error-Code": error.code} if error.code else {}
        text = json.dumps({"error": str(error), **error.fields}).encode()
        self.answer(error.status, text, {"Content-Type": "application/json", **named})

    def _fail(self, wanted: str) -> None:
        with self.hub.lock:
            fault = next(
                (candidate for candidate in self.hub.faults if candidate.times and candidate.text in wanted), None
            )
            if fault is not None:
                fault.times -= 1
        if fault is not None:
            fault.act()
            if fault.status is not None:
                raise Refused(fault.status, "out of order")

    @override
    def handle(self) -> None:
        """Answer the requests of a connection; the client may end it, such as a program that is killed."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
