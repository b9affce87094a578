"""Memory, tasks and sockets of an operator under churn: they must not grow.

    PYTHONPATH=. python benchmarks/operator_soak.py [--minutes 30] [--jobs 200] [--out FILE]

Jobs are created, edited, finished and deleted all the time; their number stays the same. A line shows the figures every
ten seconds. The first third warms up; the program fails if the last third uses more than the second one.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2
import psutil
from operator_stack import JOBS, RAYJOBS, delete, empty_plane, resident, submit
from results import FIGURES, write

from e2e.operator_process import RunningOperator, operator

SAMPLE_SECONDS = 10.0
GROWTH = 1.05
SLACK = {"memory_mib": 2.0, "tasks": 3.0, "sockets": 3.0, "threads": 2.0}
MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Sample:
    """The operator at one time."""

    seconds: float
    jobs_made: int
    memory_mib: float
    tasks: float
    sockets: float
    threads: float


def take(running: RunningOperator, began: float, made: int) -> Sample:
    """The operator now."""
    process = psutil.Process(running.process.pid)
    text = running.page("/metrics").text
    tasks = next(line for line in text.splitlines() if line.startswith("diffusionrl_operator_tasks "))
    return Sample(
        time.monotonic() - began,
        made,
        resident(running),
        float(tasks.split()[1]),
        len(process.net_connections()),
        process.num_threads(),
    )


def churn(client: httpx2.Client, number: int, jobs: int) -> None:
    """Create a job, edit one, finish one, delete the oldest."""
    submit(client, [f"job-{number}"])
    edited = number - jobs // 4
    finished = number - jobs // 2
    oldest = number - jobs
    if edited >= 0:
        change = json.dumps(
            {"metadata": {"annotations": {"example.com/edited": str(number)}}, "spec": {"seed": number}}
        )
        client.patch(f"{JOBS}/job-{edited}", content=change, headers=MERGE).raise_for_status()
    if finished >= 0:
        status = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
        answer = client.patch(
            f"{RAYJOBS}/job-{finished}-a01/status", content=json.dumps({"status": status}), headers=MERGE
        )
        if answer.status_code != httpx2.codes.NOT_FOUND:  # the operator may be behind
            answer.raise_for_status()
    if oldest >= 0:
        delete(client, [f"job-{oldest}"])


def samples(running: RunningOperator, client: httpx2.Client, minutes: float, jobs: int) -> Iterator[Sample]:
    """Samples under churn, as often as `SAMPLE_SECONDS`."""
    began = last = time.monotonic()
    for number in itertools.count():
        churn(client, number, jobs)
        now = time.monotonic()
        if now - last >= SAMPLE_SECONDS:
            last = now
            yield take(running, began, number + 1)
        if now - began >= minutes * 60:
            return


def grown(found: list[Sample]) -> list[str]:
    """What the last third of the samples uses more of than the second third."""
    third = len(found) // 3
    middle = found[third : 2 * third]
    last = found[2 * third :]
    messages = []
    for name, slack in SLACK.items():
        before, after = (statistics.median(getattr(sample, name) for sample in part) for part in (middle, last))
        if after > before * GROWTH + slack:
            messages.append(f"{name} grew from {before:.1f} to {after:.1f}")
    return messages


def main() -> int:
    """Run; return 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=200, help="jobs that exist at the same time")
    parser.add_argument("--out", type=Path, default=FIGURES / "operator_soak.json")
    chosen = parser.parse_args()
    taken: list[Sample] = []
    with empty_plane() as (plane, client, folder):
        with operator(plane, folder) as running:
            for sample in samples(running, client, chosen.minutes, chosen.jobs):
                taken.append(sample)
                print("  ".join(f"{key} {value:.0f}" for key, value in asdict(sample).items()), flush=True)
            healthy = running.page("/healthz").status_code == httpx2.codes.OK
    if len(taken) < 9:
        print(f"{len(taken)} samples are too few; run longer", file=sys.stderr)
        return 1
    problems = grown(taken) + ([] if healthy else ["/healthz fails"])
    write(chosen.out, [asdict(sample) for sample in taken], minutes=chosen.minutes, jobs=chosen.jobs)
    print("\n".join(problems) or "nothing grew")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
