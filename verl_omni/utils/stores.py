"""Stores outside the run folder: S3-compatible object stores (`s3://bucket/key`) and folders (`file:///path`).

    python3 -m verl_omni.utils.stores download URL FOLDER [--endpoint URL] [--region NAME]

Credentials come from `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, or from where AWS's own
programs look for them. pyarrow has the client, which the data sets need anyway.
"""

import argparse
import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

S3 = "s3"
FILE = "file"
# Timeouts in seconds of one request, and how many times the client sends it.
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 60.0
REQUESTS = 3
PART = ".part"
BLOCK = 8 * 1024 * 1024
SECOND_NS = 1_000_000_000


class StoreError(OSError):
    """A store refuses a request, or does not answer; the message names the store and the object."""


class StoreRefused(StoreError):
    """A store refuses a request for a reason that does not pass by itself, such as a wrong token."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access to S3.

    Attributes:
        endpoint: URL of an S3-compatible server; None: AWS.
        region: None: what AWS's variables say, else us-east-1.
    """

    endpoint: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a store: its name below the folder that was listed, size in bytes, and time of its change."""

    name: str
    size: int
    changed_ns: int | None


class Store:
    """A folder of a store.

    Args:
        url: `s3://bucket/prefix` or `file:///folder`.

    Raises:
        ValueError: another kind of URL, or one without a bucket.
    """

    def __init__(self, url: str, access: Access = Access()) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme == S3 and parts.netloc:
            self._files = _s3(access)
            self._root = f"{parts.netloc}{parts.path}".rstrip("/")
        elif parts.scheme == FILE and parts.path.startswith("/") and not parts.netloc:
            from pyarrow import fs

            self._files = fs.LocalFileSystem()
            self._root = parts.path.rstrip("/") or "/"
        else:
            raise ValueError(f"{url}: not the URL of a store; write s3://BUCKET/PREFIX or file:///FOLDER")

    def send(self, path: Path, name: str) -> None:
        """Write a file as the object `name`, atomically: after a failure, an existing object is unchanged.

        Raises:
            StoreError: the store does not take it. FileNotFoundError: there is no such file.
        """
        target = f"{self._root}/{name}"
        with path.open("rb") as source:
            try:
                self._write(source, target)
            except OSError as error:
                raise StoreError(f"{self.url}/{name} could not be written: {_brief(error)}") from error

    def receive(self, name: str, path: Path, changed_ns: int | None = None) -> None:
        """Read the object `name` into a file; the file is complete or absent.

        Args:
            changed_ns: the file's time of change. On a file system that does not take it, that is now.

        Raises:
            StoreError: there is no such object, or the store does not give it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        # A unique name: the pods of a job may download into one claim at the same time.
        aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART}")
        try:
            source = self._files.open_input_stream(f"{self._root}/{name}" if name else self._root)
            with source, aside.open("wb") as target:
                shutil.copyfileobj(source, target, BLOCK)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise StoreError(f"{self.url}/{name}".rstrip("/") + f" could not be read: {_brief(error)}") from error
        if changed_ns is not None:
            with contextlib.suppress(OSError):
                os.utime(aside, ns=(changed_ns, changed_ns))
        aside.replace(path)

    def objects(self) -> list[Listed]:
        """Everything below this folder, in order; one object with an empty name if the URL names a file.

        Raises:
            StoreError: there is nothing, or the store does not list it, or an object's name leads out of the folder.
        """
        from pyarrow import fs

        try:
            info = self._files.get_file_info(self._root)
            if info.type == fs.FileType.File:
                return [Listed("", info.size, info.mtime_ns)]
            infos = self._files.get_file_info(fs.FileSelector(self._root, recursive=True))
        except OSError as error:
            raise StoreError(f"{self.url} could not be read: {_brief(error)}") from error
        files = sorted((entry for entry in infos if entry.type == fs.FileType.File), key=lambda entry: str(entry.path))
        return [Listed(self._name(entry.path), entry.size, entry.mtime_ns) for entry in files]

    def _name(self, path: str) -> str:
        """The name of an object below this folder. To S3, `..` is part of a name like any other."""
        name = path.removeprefix(f"{self._root}/")
        if name == path or ".." in name.split("/") or name.startswith("/"):
            raise StoreError(
                f"{self.url} has the object {name!r}, whose name leads out of the folder: nothing was read"
            )
        return name

    def _write(self, source: Any, target: str) -> None:
        from pyarrow import fs

        if not isinstance(self._files, fs.LocalFileSystem):
            with self._files.open_output_stream(target) as stream:
                shutil.copyfileobj(source, stream, BLOCK)
            return
        self._files.create_dir(target.rpartition("/")[0])
        with self._files.open_output_stream(target + PART) as stream:
            shutil.copyfileobj(source, stream, BLOCK)
        self._files.move(target + PART, target)


def download(url: str, folder: Path, access: Access = Access()) -> int:
    """Copy everything below `url` into a folder; a file that is there is kept if it has the object's size and time.

    A file that is newer than the object is kept, too: not every file system takes the object's time. A file without an
    object stays.

    Returns:
        The number of files.

    Raises:
        StoreError: there is nothing below `url`, or it cannot be read.
    """
    store = Store(url, access)
    objects = store.objects()
    for listed in objects:
        path = folder / (listed.name or url.rpartition("/")[2])
        if not is_current(path, listed):
            store.receive(listed.name, path, listed.changed_ns)
    return len(objects)


def is_current(path: Path, listed: Listed) -> bool:
    """Whether a file has the size of an object, and was not changed before it.

    Compares whole seconds, because file systems cut times off.
    """
    if not path.is_file():
        return False
    status = path.stat()
    return status.st_size == listed.size and status.st_mtime_ns // SECOND_NS >= (listed.changed_ns or 0) // SECOND_NS


def _s3(access: Access) -> Any:
    from pyarrow import fs

    options: dict[str, Any] = {}
    if access.endpoint:
        parts = urlsplit(access.endpoint)
        options = {"scheme": parts.scheme, "endpoint_override": f"{parts.netloc}{parts.path}".rstrip("/")}
    if access.region:
        options["region"] = access.region
    elif access.endpoint:
        options["region"] = "us-east-1"  # S3-compatible servers rarely have regions
    return fs.S3FileSystem(
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        check_directory_existence_before_creation=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=REQUESTS),
        **options,
    )


def _brief(error: OSError) -> str:
    return " ".join(str(error).split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Download; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("download",))
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--endpoint")
    parser.add_argument("--region")
    options = parser.parse_args(arguments)
    try:
        count = download(options.url, options.folder, Access(options.endpoint, options.region))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.url}: {count} files in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
