"""Archives that `drl fetch` reads: of unsafe, malformed and incomplete ones nothing is kept."""

import contextlib
import io
import json
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.client.archives import archive, names, sends
from control.client.fake_server import FakeServer
from control.client.job_objects import PODS
from omni_operator.client.archive import (
    HEADER_LIMIT,
    MARKER,
    BrokenArchive,
    UnsafeArchive,
    check_folder,
    staging,
    unpack,
)
from omni_operator.staged_files import PREFIX


def with_headers(headers: dict[str, str]) -> bytes:
    """An archive with a file that has extended headers of the PAX format."""
    file = io.BytesIO()
    info = tarfile.TarInfo("a")
    info.size = 1
    info.pax_headers = headers
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(b"x"))
    return file.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type = kind
    info.linkname = target
    return info


BAD = {
    "absolute": archive(("/etc/x", b"a")),
    "parent": archive(("a/../../x", b"a")),
    "symbolic link": archive(("a", special(tarfile.SYMTYPE, "/etc")), ("a/x", b"a")),
    "hard link": archive(("a", special(tarfile.LNKTYPE, "../x"))),
    "device": archive(("a", special(tarfile.CHRTYPE))),
    "pipe": archive(("a", special(tarfile.FIFOTYPE))),
    "folder": archive(("a", special(tarfile.DIRTYPE))),
    "twice": archive(("a", b"1"), ("a", b"2")),
    "twice by another spelling": archive(("a/b", b"1"), ("a/./b", b"2")),
    "marker": archive((MARKER, b"{}")),
    "marker by another spelling": archive((f"./{MARKER}", b"{}")),
    "folder of the marker's name": archive((f"{MARKER}/x", b"a")),
    "no name": archive((".", b"a")),
    "deep": archive(("a/" * 5000 + "x", b"a")),
}
BROKEN = {
    "file as a folder": archive(("a", b"1"), ("a/b", b"2")),
    "folder as a file": archive(("a/b", b"1"), ("a", b"2")),
    "sparse map": with_headers({"GNU.sparse.map": "a,b"}),
    "sparse size": with_headers({"GNU.sparse.size": "zz"}),
    "sparse data": with_headers({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "time too large": with_headers({"mtime": "1e300"}),
    "time that is no number": with_headers({"mtime": "nan"}),
    "name with a null byte": with_headers({"path": "a\0b"}),
}


@pytest.mark.parametrize("name", [*BAD, *BROKEN])
def test_an_unsafe_or_malformed_archive_leaves_nothing(name: str, running: FakeServer, tmp_path: Path) -> None:
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends((BAD | BROKEN)[name])
    before = names(tmp_path)
    fetched = running.drl("fetch", "blue", f"--to={tmp_path / 'out' / 'a'}")
    why = "unsafe archive, nothing was kept" if name in BAD else "pod blue-a01-w0: the archive "
    assert (fetched.exit_code, why in fetched.stderr) == (1, True), fetched.output
    assert names(tmp_path) == before


@given(
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8), st.sampled_from([*BROKEN])
)
def test_any_bytes_are_an_archive_or_an_error_of_one(changes: list[tuple[int, int]], name: str) -> None:
    data = bytearray(BROKEN[name])
    for offset, value in changes:
        data[offset % len(data)] = value
    for start in range(0, len(data), tarfile.BLOCKSIZE):  # with the checksum that a header needs
        block = data[start : start + tarfile.BLOCKSIZE]
        if block[257:262] == b"ustar":
            data[start + 148 : start + 156] = b"%06o\0 " % tarfile.calc_chksums(block)[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UnsafeArchive, BrokenArchive):
        unpack(io.BytesIO(data), Path(folder))


class Endless:
    """The begin of an archive, and then the same bytes for ever."""

    def __init__(self, begin: bytes, rest: bytes) -> None:
        self.begin = begin
        self.rest = rest
        self.sent = 0

    def read(self, size: int) -> bytes:
        self.sent += size
        assert self.sent < 16 * HEADER_LIMIT, "a header without an end is read into memory"
        data = self.begin[:size]
        self.begin = self.begin[size:]
        return data + self.rest * ((size - len(data)) // len(self.rest))


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("a")
    info.type = kind
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


LARGE = header(tarfile.REGTYPE, 3 * HEADER_LIMIT) + b"x" * 3 * HEADER_LIMIT
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "b", "GNU.sparse.realsize": "1"}
# The map of a sparse file is in its content, and ends where it says itself.
MAP = with_headers(SPARSE)[: 3 * tarfile.BLOCKSIZE] + b"999999999\n1\n2\n3\n"


@pytest.mark.parametrize("first", [b"", LARGE])
@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        *((header(kind, 2**32), b"a") for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)),
        (MAP, b"1\n"),
    ],
)
def test_a_header_without_an_end_is_refused(first: bytes, begin: bytes, rest: bytes, tmp_path: Path) -> None:
    """A pod that is not trusted would fill the memory of who fetches from it."""
    with pytest.raises(UnsafeArchive, match="a header has more than 1048576 bytes"):
        unpack(Endless(first + begin, rest), tmp_path)


def test_a_name_that_is_not_utf_8_is_printed(running: FakeServer, tmp_path: Path) -> None:
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(archive(("./a\udcff\x1b", b"x")))
    fetched = running.drl("fetch", "blue", f"--to={tmp_path / 'out'}", "--json")
    assert fetched.exit_code == 0, fetched.output
    assert fetched.stdout.isascii() and fetched.stdout.rstrip("\n").isprintable()
    assert json.loads(fetched.stdout)["files"] == ["a\udcff\x1b"]


@pytest.mark.parametrize("end", [0, 100, 512, 600, 1024])
def test_an_archive_that_ends_too_early_leaves_nothing(end: int, running: FakeServer, tmp_path: Path) -> None:
    complete = archive(("a", b"x" * 512), ("b", b"x" * 512))
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(complete[:end], None)
    assert "the connection broke" in running.fails(1, "fetch", "blue", f"--to={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_command_that_fails_after_a_whole_archive_leaves_nothing(running: FakeServer, tmp_path: Path) -> None:
    failure = b'{"status": "Failure", "message": "exit code 137"}'
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(archive(("a", b"x")), failure)
    fetched = running.drl("fetch", "blue", f"--to={tmp_path / 'out'}")
    assert (fetched.exit_code, fetched.stderr) == (1, "exec in pod blue-a01-w0: exit code 137\n")
    assert not (tmp_path / "out").exists()


def test_permissions_of_the_archive_are_not_kept(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.mode = 0o6777
    info.uid = 0
    assert unpack(io.BytesIO(archive(("a", info))), tmp_path) == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o7022 == 0
    with pytest.raises(BrokenArchive):
        unpack(io.BytesIO(b"no archive" * 100), tmp_path)
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(BAD["parent"]), tmp_path)


def test_files_are_written_aside_in_their_folder_which_an_error_leaves_as_it_was(tmp_path: Path) -> None:
    """The folder may be a mount, whose parent is on another file system, or where the user may write nothing."""
    owner = {"job": "blue"}
    folder = tmp_path / "a" / "results"
    for existed in (False, True):
        with contextlib.suppress(ZeroDivisionError), staging(folder, owner) as staged:
            assert staged.parent == folder
            (staged / "file").write_text("half")
            raise ZeroDivisionError
        assert folder.exists() is existed
        with staging(folder, owner) as staged:
            (staged / "file").write_text("whole")
        assert {path.name: path.read_text() for path in folder.iterdir()} == {
            "file": "whole",
            MARKER: json.dumps(owner),
        }


def test_what_a_killed_process_has_left_does_not_take_a_folder(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}1").mkdir()
    check_folder(tmp_path, {"job": "blue"})
