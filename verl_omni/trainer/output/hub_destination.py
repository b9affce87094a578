"""Results in a model repository of the Hugging Face hub, `hf://owner/name/folder`: one commit for each time."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from omegaconf import DictConfig

from verl_omni.trainer.output import inputs, model_card
from verl_omni.trainer.output.destinations import Key, ResultFile
from verl_omni.utils import hub_commit
from verl_omni.utils.stores import StoreError, StoreRefused

PREFIX = "hf://"
ENDPOINT = "HF_ENDPOINT"
# as huggingface_hub reads it
OFFLINE = "HF_HUB_OFFLINE"
ON = ("1", "ON", "YES", "TRUE")
POLL_SECONDS = 0.1


def find_problem(config: DictConfig, variables: Mapping[str, str]) -> str | None:
    """PURE: the reason why results cannot be sent to the hub; None if they can, or are sent elsewhere.

    Args:
        variables: the user's environment. Without `HF_HUB_OFFLINE`, the trainer is offline but for its results.
    """
    url = config.trainer.output.url
    endpoint = config.trainer.store.endpoint
    if url is None or not url.startswith(PREFIX):
        return None
    offline = variables.get(OFFLINE, "")
    hub = variables.get(ENDPOINT)
    if offline.upper() in ON:
        return (
            f"trainer.output.url: {url} is on the Hugging Face hub, and {OFFLINE}={offline}: unset it, and only the "
            "results reach the hub; or send them to s3://BUCKET/PREFIX or file:///FOLDER"
        )
    if endpoint is not None and not hub and inputs.in_store(config):
        return (
            f"trainer.store.endpoint: {endpoint} is ambiguous, because inputs are in an S3-compatible store, and "
            f"results are sent to the hub: for the store, also set the variable {ENDPOINT} (https://huggingface.co); "
            "for the hub, set only that one"
        )
    if endpoint is not None and hub and not inputs.in_store(config):
        return f"trainer.store.endpoint: {endpoint} is given, and the variable {ENDPOINT} is {hub}: write one of them"
    return None


class HubDestination:
    """A folder of a repository, which is created, private, if there is none.

    Args:
        url: `hf://owner/name/folder`.
        endpoint: URL of the hub; None: what huggingface_hub's variables say.
        card: makes `README.md` for a repository without one, from whether an adapter is sent.
        variables: environment of the program that sends, with the token.
    """

    def __init__(
        self, url: str, endpoint: str | None, card: Callable[[bool], str], variables: Mapping[str, str]
    ) -> None:
        self.url = url.rstrip("/")
        owner, _, path = self.url.removeprefix(PREFIX).partition("/")
        name, _, self.folder = path.partition("/")
        self.repository = f"{owner}/{name}"
        self._endpoint = endpoint
        self._card = card
        self._variables = variables
        self._sent: set[Key] = set()
        self._has_card = False
        self._error = ""

    def send(self, files: Sequence[ResultFile], title: str, ended: Callable[[], bool]) -> None:
        """As `Destination.send`: all files are there, or none. `README.md` comes with the first checkpoint."""
        pending = [file for file in files if file.key not in self._sent]
        weights = [file.name for file in files if file.name.startswith(("checkpoints/", "adapters/"))]
        card = self._card(any("/lora/" in name for name in weights)) if weights and not self._has_card else None
        request = hub_commit.Request(
            self.repository,
            self._endpoint,
            create=not self._sent,
            title=f"{self.folder}: {title}",
            files=tuple(
                hub_commit.Upload(str(file.path), f"{self.folder}/{file.name}", file.may_change) for file in pending
            ),
            card=card,
        )
        answer = _answer(request, self._variables, ended)
        if answer is None:
            raise StoreError(f"the hub has not taken a commit in time{self._error}")
        if answer.error is not None:
            self._error = f"; before, {answer.error}"
            kind = StoreRefused if answer.refused else StoreError
            raise kind(f"the hub has taken no commit: {answer.error}")
        self._error = ""
        self._sent |= {file.key for file in pending}
        self._has_card = self._has_card or card is not None


def open_repository(config: DictConfig, folder: Path, variables: Mapping[str, str]) -> HubDestination:
    """The destination that `trainer.output.url` names; raises as `model_card.describe_run`."""
    url = config.trainer.output.url
    run = model_card.describe_run(config, folder / "job.yaml")
    destination = HubDestination(
        url,
        None if variables.get(ENDPOINT) else config.trainer.store.endpoint,
        lambda adapter: model_card.write(run, destination.repository, destination.folder, adapter=adapter),
        variables,
    )
    return destination


def _answer(
    request: hub_commit.Request, variables: Mapping[str, str], ended: Callable[[], bool]
) -> hub_commit.Answer | None:
    """Reply of the upload process; None if it sends none before `ended`."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [sys.executable, "-m", hub_commit.__name__],
            env=hub_commit.environment(variables),
            text=True,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
        ) as process:
            try:
                in_time = _wait(process, request, ended)
            finally:
                process.kill()
        if not in_time:
            return None
        text = _read(output)
        if not text:
            last = _read(errors).strip().rpartition("\n")[2]
            return hub_commit.Answer(f"{hub_commit.__name__} ended with {process.returncode}: {last}")
    return hub_commit.Answer(**json.loads(text))


def _wait(process: subprocess.Popen[str], request: hub_commit.Request, ended: Callable[[], bool]) -> bool:
    """Send the process its request. Returns whether it ends in time."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: its standard error says why
        print(json.dumps(asdict(request)), file=process.stdin, flush=True)
    while True:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if ended():
                return False
        else:
            return True


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
