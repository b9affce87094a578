"""`drl watch`: follow a job on a cluster until it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from typing_extensions import override

from omni_operator.api.status import Status
from omni_operator.cli import console
from omni_operator.cli.local.progress_display import Display, make_display
from omni_operator.cli.local.run_state import RunState
from omni_operator.cli.options import Json

from .cluster_options import Context, Kubeconfig, Name, Namespace, cluster_client

if TYPE_CHECKING:
    from omni_operator.client import Client, Event, Job

POLL_SECONDS = 2.0
PAST_EVENTS = 5  # shown at the start
Plain = Annotated[bool, typer.Option("--plain", help="Print one line per step instead of a progress bar.")]


def watch(
    called: typer.Context,
    name: Name,
    plain: Plain = False,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show progress and events of a job on a cluster until it ends.

    Example: drl watch my-job

    The exit code is 1 if the job fails. With --json, prints a line for each change. Ctrl-C stops watching; the job
    goes on.
    """
    if as_json:
        console.refuse_given(called, ["plain"], "with --json")
    with cluster_client(namespace, context, kubeconfig, name) as client:
        watch_job(client, name, plain=plain, as_json=as_json)


def watch_job(client: Client, name: str, *, plain: bool = False, as_json: bool = False) -> None:
    """Follow a job to its end, and exit with what it says."""
    try:
        if as_json:
            state = _follow(client, name, JsonView())
        else:
            with make_display(name, Console(emoji=False), plain=plain) as display:
                state = _follow(client, name, DisplayView(display))
    except KeyboardInterrupt:
        console.note(f"{name} goes on; drl watch {name} shows it again")
        raise typer.Exit(console.INTERRUPTED) from None
    if state != "Succeeded":
        console.refuse(f"{name} is {state}; run drl why {name}", console.FAILED)
    if not as_json:
        console.say(f"{name} is {state}")


class View(Protocol):
    """Output for what was read of a job."""

    def job(self, job: Job) -> None:
        """Show what has changed."""

    def event(self, event: Event) -> None:
        """Show an event."""

    def note(self, text: str) -> None:
        """Print a line."""
        console.note(text)


def _follow(client: Client, name: str, view: View) -> str:
    from omni_operator.cluster.errors import ClusterError, Unavailable

    seen: dict[str, int] | None = {}
    first = True
    for job in client.follow(name, poll=POLL_SECONDS):
        try:
            events = client.events(job) if seen is not None else ()
        except Unavailable:
            events = ()  # read again with the next status
        except ClusterError as error:
            view.note(f"events are not shown: {error}")
            seen = None
            events = ()
        for event in events[-PAST_EVENTS:] if first else events:
            if seen is not None and seen.get(event.uid) != event.count:
                view.event(event)
        if seen is not None:
            seen |= {event.uid: event.count for event in events}
        view.job(job)
        first = False
    return str(job.status.state)


class DisplayView(View):
    """The progress display of `drl run`, from the status of a job."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._shown = RunState(phase="")

    @override
    def job(self, job: Job) -> None:
        status = job.status
        phase = describe_state(status)
        step = step_event(status)
        state = RunState(phase, status.progress.global_step or 0, status.progress.total_steps, step)
        if phase != self._shown.phase and not status.finished:
            self._display.event({"event": "phase"}, state)
        if step is not None and step["step"] != self._shown.step:
            self._display.event(step, state)
        self._shown = state

    @override
    def event(self, event: Event) -> None:
        self._display.note(f"{event.time}  {event.reason}: {event.message}")


class JsonView(View):
    """One JSON object per line: `status` where it has changed, and `event`."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}

    @override
    def job(self, job: Job) -> None:
        status = job.status
        progress = job.status.progress
        line = {
            "kind": "status",
            "name": job.name,
            "state": status.state,
            "reason": status.reason,
            "attempt": status.attempts,
            "step": progress.global_step,
            "total_steps": progress.total_steps,
            "reward": progress.reward,
            "images_per_second": progress.images_per_second,
            "eta_s": progress.estimated_remaining_seconds,
            "weights_version": status.weights.trainer_version,
            "rollouts": status.rollout.summary,
        }
        if line != self._last:
            self._last = line
            console.say(json.dumps(line, ensure_ascii=False))

    @override
    def event(self, event: Event) -> None:
        line = {
            "kind": "event",
            "time": event.time,
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "count": event.count,
        }
        console.say(json.dumps(line, ensure_ascii=False))


def describe_state(status: Status) -> str:
    """`Running, attempt 2, 4/4 pods`, or the state and what holds the job."""
    from omni_operator.client.explanation import find_cause

    parts: list[str] = [status.state or "not seen by an operator"]
    if status.attempts > 1:
        parts.append(f"attempt {status.attempts}")
    cause = find_cause(status)
    if cause is None and status.rollout.summary and status.state == "Running":
        parts.append(f"{status.rollout.summary} pods")
    explanation = [text for text in (cause.reason, cause.message) if text and text != status.state] if cause else []
    return ": ".join([", ".join(parts), *explanation])


def step_event(status: Status) -> dict[str, Any] | None:
    """The progress as the event of a step that a local run has; None before the first step."""
    progress = status.progress
    if progress.global_step is None:
        return None
    metrics = {
        "event": "step",
        "step": progress.global_step,
        "reward/mean": progress.reward,
        "images_per_s": progress.images_per_second,
        "eta_s": progress.estimated_remaining_seconds,
        "weights/version": status.weights.trainer_version,
    }
    not_finite = {"reward/mean"} if progress.samples else set()  # there are samples, but no mean of their rewards
    return {name: value for name, value in metrics.items() if value is not None or name in not_finite}
