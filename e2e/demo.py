"""`make demo`: from nothing to a trained model on Kubernetes, on this machine, and its report.

Cluster, KubeRay, operator and pods are real; the accelerator is fake, and the work runs on the CPU.
"""

import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from e2e.cluster import addons
from e2e.cluster.__main__ import chosen
from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache
from e2e.cluster.provider import Cluster
from e2e.cluster.tools import Tools
from e2e.system import bring_up

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = Path("examples/red-grpo-cluster.yaml")
NAMESPACE = "demo"
JOB = "red-grpo-cluster"
CLAIM = "runs"
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class View:
    """The progress of a job in one line.

    Attributes:
        over: whether it succeeded or failed for good; None while it runs.
    """

    text: str
    step: int = 0
    total: int | None = None
    over: bool | None = None


def view(status: dict[str, Any]) -> View:
    """The newest of a status in a line. PURE."""
    conditions = {item["type"]: item for item in status.get("conditions", ())}
    progress = status.get("progress", {})
    weights = status.get("weights", {})
    step = progress.get("globalStep") or 0
    total = progress.get("totalSteps")
    if conditions.get("Succeeded", {}).get("status") == "True":
        held_out = progress.get("validationReward")
        held_out_reward = f", reward of held-out prompts {held_out:.3f}" if held_out is not None else ""
        return View(f"succeeded{held_out_reward}", step, total, over=True)
    if conditions.get("Failed", {}).get("status") == "True":
        return View(conditions["Failed"].get("message") or "failed", step, total, over=False)
    again = f"attempt {status['attempts']}, " if status.get("attempts", 0) > 1 else ""
    if step:
        reward = progress.get("rewardSummary", "")
        return View(f"{again}reward {reward}, weights {weights.get('minReplicaVersion', '?')}", step, total)
    ready = conditions.get("Ready", {})
    # Once pods are ready, the trainer reports what it is waiting for.
    if ready.get("status") == "True":
        waiting_for = conditions["Succeeded"].get("message") or "the pods are ready"
    else:
        waiting_for = ready.get("message") or ready.get("reason") or "the operator has not seen it yet"
    return View(f"{again}{waiting_for}", 0, total)


def follow(cluster: Cluster, console: Console) -> View:
    """Show the job until it ends; without a terminal, a line for each change."""
    columns = (TextColumn("[bold]{task.fields[name]}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    last = ""
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task("", name=JOB, total=None)
        while True:
            progress = view(job(cluster).get("status") or {})
            text = f"step {progress.step}/{progress.total}: {progress.text}" if progress.step else progress.text
            shown.update(task, completed=progress.step, total=progress.total, description=text)
            if text != last and not console.is_terminal:
                console.print(text, soft_wrap=True)
            last = text
            if progress.over is not None:
                return progress
            time.sleep(LOOK_S)


def job(cluster: Cluster) -> dict[str, Any]:
    """The job, as the API server has it."""
    body: dict[str, Any] = json.loads(cluster.kubectl("get", "drl", JOB, f"--namespace={NAMESPACE}", "--output=json"))
    return body


def submit(cluster: Cluster, runs: Path) -> None:
    """Apply the example; what an earlier demo left of it goes first."""
    cluster.kubectl("delete", "drl", JOB, f"--namespace={NAMESPACE}", "--ignore-not-found", deadline=120)
    shutil.rmtree(runs / JOB, ignore_errors=True)
    cluster.kubectl("apply", f"--namespace={NAMESPACE}", f"--filename={ROOT / EXAMPLE}")


def keep(results: Path, runs: Path) -> Path:
    """Copy the results of the demo, and replace the results of an earlier demo.

    `runs/JOB` is where `drl fetch` puts the results of the job of that name on another cluster.
    """
    kept = runs / f"demo-{results.name}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(results, kept)
    return kept


def demo(console: Console) -> int:
    """Show all of it; 0 if the training succeeded."""
    begun = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begun:6.1f} s  {text}", soft_wrap=True)

    cluster = chosen(say)
    system = bring_up(cluster, say)
    cluster.kubectl("apply", "--server-side", "--filename=-", text=addons.namespace(NAMESPACE))
    runs = system.claim(NAMESPACE, CLAIM)
    say(f"kubectl apply --namespace {NAMESPACE} --filename {EXAMPLE}")
    submit(cluster, runs)
    hint = f"export KUBECONFIG={system.kubeconfig} PATH={Tools(cache()).bin}:$PATH"
    say(f"to look at it from another terminal: {hint}; kubectl get drl --namespace {NAMESPACE} --watch")
    ended = follow(cluster, console)
    say(ended.text)
    if not ended.over:
        console.print(cluster.kubectl("describe", "drl", JOB, f"--namespace={NAMESPACE}"), soft_wrap=True)
        return 1
    kept = keep(runs / JOB, ROOT / "runs")
    say(f"the report: {kept / 'report.html'}")
    say("the cluster is still running; to remove it: make cluster-down")
    return 0


def main() -> int:
    """Run the demo; the exit status."""
    # Messages contain brackets and colons.
    console = Console(markup=False, emoji=False, highlight=False)
    try:
        return demo(console)
    except ClusterError as error:
        console.print(str(error), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("the job goes on without being watched; to remove all of it: make cluster-down")
        return 130


if __name__ == "__main__":
    sys.exit(main())
