"""Client of a judge: a vision-language model behind an OpenAI-compatible server, asked about one image at a time."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from tenacity import AsyncRetrying, stop_after_attempt, wait_exponential
from torch import Tensor

from verl_omni.reward_loop import http_exchange, judge_answers
from verl_omni.reward_loop.http_answers import AGAIN, Answer, AskAgain, pause_before
from verl_omni.reward_loop.judge_router import WAITING
from verl_omni.reward_loop.reward_server import png_base64
from verl_omni.reward_loop.scorer_results import error_text
from verl_omni.reward_loop.video_frames import chosen_frames

PAUSES = wait_exponential(max=10)  # seconds between two attempts


class JudgeError(RuntimeError):
    """The judge cannot be reached, refused the request, or gave an answer without a score."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A model on a server.

    Attributes:
        base_url: the server's URL up to and with /v1.
        model: the name that the server serves it under.
        api_key: sent as a bearer token.
        timeout: seconds of an attempt.
        attempts: number of attempts while the server is unreachable, answers 408, 425, 429 or 5xx, or no JSON. The
            pauses grow, unless the server's `Retry-After` is longer.
        max_tokens: upper limit of an answer.
    """

    base_url: str
    model: str
    api_key: str | None
    timeout: float
    attempts: int
    max_tokens: int

    @property
    def url(self) -> str:
        """Endpoint of a chat request."""
        return f"{self.base_url.rstrip('/')}/chat/completions"

    async def ask_about_frames(self, sample: Tensor, question: str, interval: int) -> list[judge_answers.JudgeAnswer]:
        """The answers about an image [3, H, W], or about each `interval`-th frame of a video [T, 3, H, W], in order.

        Raises:
            JudgeError: as `ask`; the other questions are given up.
        """
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self.ask(frame, question)) for frame in chosen_frames(sample, interval)]
        except* JudgeError as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in asked]

    async def ask(self, image: Tensor, question: str, *others: Tensor) -> judge_answers.JudgeAnswer:
        """The answer to a question about an image, or about several, at temperature 0.

        Args:
            image, others: uint8 [3, H, W]; they are sent in this order, as PNGs in data URLs.

        Raises:
            JudgeError: no attempt succeeded, or the response has no usable text.
        """
        # In threads: encoding would block the other samples.
        pictures = [await asyncio.to_thread(png_base64, picture) for picture in (image, *others)]
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}} for picture in pictures
        ]
        content.append({"type": "text", "text": question})
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        again = AsyncRetrying(
            stop=stop_after_attempt(self.attempts),
            wait=lambda state: pause_before(state, PAUSES),
            reraise=True,
            retry=AGAIN,
        )
        try:
            while True:
                with contextlib.suppress(_NoReplica):  # the deadline of the score limits how long it asks again
                    return self._text(await again(self._post, body))
        except AskAgain as error:
            raise JudgeError(f"{self.url}: {error} in each of {self.attempts} attempts") from error
        except httpx2.TransportError as error:
            unreachable = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.UnsupportedProtocol)
            advice = "; start the judge's server, or correct base_url" if unreachable else ""
            raise JudgeError(
                f"{self.url}: no response in {self.attempts} attempts of {self.timeout:g} s "
                f"({type(error).__name__}: {error}){advice}"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise JudgeError(f"{self.url}: {error_text(error)}") from error

    async def _post(self, body: Mapping[str, Any]) -> Answer:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        answer = await http_exchange.post(self.url, self.timeout, json=body, headers=headers)
        if answer.status >= 500 and WAITING in answer.headers:
            raise _NoReplica(answer.shown)
        answer.check_status()
        if answer.is_success:
            answer.json()
        return answer

    def _text(self, answer: Answer) -> judge_answers.JudgeAnswer:
        shown = f"{self.url}: {answer.shown}"
        if not 200 <= answer.status < 300:
            raise JudgeError(f"{shown}; check base_url, model ({self.model}) and api_key_env")
        try:
            return judge_answers.read(answer.json()["choices"][0])
        except judge_answers.UnusableAnswer as error:
            raise JudgeError(f"{shown}; {error}") from error
        except (LookupError, TypeError, AttributeError) as error:
            raise JudgeError(f"{shown}; expected choices[0].message.content") from error


class _NoReplica(RuntimeError):
    """The judge of the run has no replica at the moment, and another one may come."""


def connect(
    base_url: str | None,
    model: str | None,
    api_key_env: str | None,
    *,
    reward_router_address: str | None,
    model_name: str | None,
    timeout: float,
    attempts: int,
    max_tokens: int,
    environment: Mapping[str, str] = os.environ,
) -> Judge:
    """The judge from a scorer's settings; without a base_url, the judge behind verl's reward router, if one runs.

    Args:
        api_key_env: name of the variable in `environment` that holds the key.
        reward_router_address: host:port. model_name: the model that it serves.

    Raises:
        ValueError: base_url, model or the variable is missing.
    """
    if base_url is None and reward_router_address:
        base_url = f"http://{reward_router_address}/v1"
    settings = {"base_url": base_url, "model": model or model_name, "api_key_env": api_key_env}
    if problems := connection_problems(settings, environment):
        raise ValueError("; ".join(problems))
    key = environment[api_key_env] if api_key_env else None
    return Judge(str(base_url), str(model or model_name), key, timeout, attempts, max_tokens)


def connection_problems(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Messages about missing settings of a judge."""
    problems = []
    url = given.get("base_url")
    if not url:
        problems.append(
            "base_url: must be given: the URL of an OpenAI-compatible server, up to and with /v1; or let the run serve "
            "the judge, with reward.reward_model.enable=true"
        )
    elif not str(url).startswith(("http://", "https://")):
        problems.append(f"base_url: {url} must start with http:// or https://")
    if not given.get("model"):
        problems.append("model: must be given: the name that the judge's server serves the model under")
    if (variable := given.get("api_key_env")) and not environment.get(str(variable)):
        problems.append(f"api_key_env: the environment variable {variable} is not set")
    return problems
