"""One commit to a model repository of the Hugging Face hub, in a separate process.

`python3 -m verl_omni.utils.hub_commit` reads a `Request` as one line of JSON, and writes an `Answer`. A
separate process can be stopped when an upload hangs, and lets the trainer stay offline: huggingface_hub has one HTTP
client, and one `HF_HUB_OFFLINE`, per process. It also ends when its standard input is closed, so that it does not
outlive the trainer.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

README = "README.md"
# without an answer; huggingface_hub itself would wait forever
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 60.0
# Uploads use Git LFS, which the tests run. Xet, the default of huggingface_hub, ignores what a hub offers.
VARIABLES = {
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
REFUSALS = {
    401: "the token is wrong or has expired",
    403: "the token may not write to it, or not create it: use one with the role write",
    404: "there is no such repository, or the token may not see it",
}
# The same request may succeed later: timeout, another commit at the same time, rate limit.
TRANSIENT = (408, 409, 412, 425, 429)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file.

    Attributes:
        name: its path in the repository.
        may_change: it may change while it is sent.
    """

    path: str
    name: str
    may_change: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A commit.

    Attributes:
        repository: `owner/name`.
        endpoint: URL of the hub; None: `HF_ENDPOINT`, else huggingface_hub's default.
        create: create the repository, private, if there is none.
        card: text of `README.md`, unless the repository has one.
    """

    repository: str
    endpoint: str | None
    create: bool
    title: str
    files: tuple[Upload, ...]
    card: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result.

    Attributes:
        error: why there is no commit; None: there is one.
        refused: the same request will not succeed later.
    """

    error: str | None = None
    refused: bool = False


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """PURE: the variables of this program."""
    return {**base, **VARIABLES}


def commit(request: Request) -> Answer:
    """Send the files and commit them, all or none; no commit if the repository has them as they are."""
    import httpx
    from huggingface_hub import HfApi, get_token, set_client_factory
    from huggingface_hub.errors import HFValidationError

    if get_token() is None:
        return Answer("there is no token: set HF_TOKEN, or run `hf auth login`", refused=True)
    timeout = httpx.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
    set_client_factory(lambda: httpx.Client(follow_redirects=True, timeout=timeout))
    api = HfApi(endpoint=request.endpoint)
    try:
        _commit(api, request)
    except HFValidationError as error:
        return Answer(_brief(error), refused=True)
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:  # from HTTP, files, uploads, answers
        return _describe(error, api.endpoint)
    return Answer()


def _commit(api: Any, request: Request) -> None:
    from huggingface_hub import CommitOperationAdd

    # Not by `exist_ok` alone: for a token that may only write, it fails with another endpoint than the hub's own.
    if request.create and not api.repo_exists(request.repository):
        api.create_repo(request.repository, private=True, exist_ok=True)
    operations = [
        # A file that grows between its digest and its upload would not be accepted.
        CommitOperationAdd(file.name, Path(file.path).read_bytes() if file.may_change else file.path)
        for file in request.files
    ]
    if request.card is not None and not api.get_paths_info(request.repository, [README]):
        operations.append(CommitOperationAdd(README, request.card.encode()))
    api.create_commit(request.repository, operations, commit_message=request.title)


def _describe(error: BaseException, endpoint: str) -> Answer:
    response = next(
        (answer for cause in _chain(error) if (answer := getattr(cause, "response", None)) is not None), None
    )
    if response is None:
        causes = list(_chain(error))
        return Answer(f"{endpoint}: {type(causes[-1]).__name__}: {_brief(causes[-1])}")
    status = response.status_code
    if response.request.method == "PUT":  # upload of a part of a file to the hub's storage, whose URLs expire
        return Answer(f"HTTP {status} ({_brief(error)})")
    message = response.headers.get("x-error-message") or _said(error, response)
    reason = REFUSALS.get(status)
    text = f"HTTP {status}" + (f", {reason}" if reason else "") + (f" ({message})" if message else "")
    return Answer(text, refused=400 <= status < 500 and status not in TRANSIENT)


def _said(error: BaseException, response: Any) -> str:
    """What the hub answered; without JSON, what huggingface_hub says about it."""
    try:
        message = response.json()["error"]
    except (ValueError, KeyError, TypeError, RuntimeError):  # RuntimeError: the answer was not read
        return _brief(error)
    return " ".join(str(message).split())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Read a request, and answer it; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal: the trainer decides when to stop
    document = json.loads(sys.stdin.readline())
    request = Request(**{**document, "files": tuple(Upload(**file) for file in document["files"])})
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.stdout.write(json.dumps(asdict(commit(request))))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the thread holds standard input, for which the interpreter's end would wait
