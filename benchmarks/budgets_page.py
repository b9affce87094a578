"""Tables of docs/contribute/evidence.md, from the raw data in docs/figures."""

import formatting
from page_tables import Run, Tables
from results import ROOT

PAGE = ROOT / "docs" / "contribute" / "evidence.md"
COLUMNS = ["Figure", "Value"]


def scale(runs: list[Run]) -> str:
    """Table of an operator with thousands of jobs."""
    run = runs[0]
    jobs = f"{run['jobs']:,}"
    deleted = f"{run['deleted']:,}"
    return formatting.table(
        COLUMNS,
        [
            ("memory without jobs", f"{run['memory_empty_mib']:.0f} MiB"),
            (f"memory with {jobs} jobs, in the process that created them", f"{run['memory_full_mib']:.0f} MiB"),
            (
                "memory with them after a restart",
                f"{run['memory_restarted_mib']:.0f} MiB: {run['memory_per_job_kib']:.1f} KiB for each job",
            ),
            ("memory after all of them were deleted", f"{run['memory_after_deletion_mib']:.0f} MiB"),
            (
                "jobs a minute, all submitted at once",
                f"{run['created_per_minute']:,.0f}, with {run['cpu_per_created_job_ms']:.1f} ms of CPU time for each",
            ),
            (
                f"ready after a restart over {jobs} jobs",
                f"{run['ready_s']:.1f} s, with {run['ready_cpu_s']:.1f} s of CPU time",
            ),
            ("time until a new job has its RayJob, right after that", f"{run['new_job_s']:.2f} s"),
            (
                "CPU time of the first passes over all jobs",
                f"{run['passes_cpu_s']:.1f} s, {run['passes_cpu_s'] * 1000 / run['jobs']:.1f} ms for each job",
            ),
            (
                f"{deleted} jobs deleted",
                f"{run['deletion_s']:.0f} s, of which the requests took {run['deletion_requests_s']:.0f} s; "
                f"{run['cpu_per_deleted_job_ms']:.1f} ms of CPU time for each",
            ),
            (
                "from a job to its RayJob, at 5 new jobs a second",
                f"p50 {run['latency_p50_s']:.2f} s, p99 {run['latency_p99_s']:.2f} s",
            ),
            (
                "one scrape of `/metrics`",
                f"{run['scrape_s']:.2f} s in a thread; the slowest probe meanwhile {run['slowest_probe_s']:.2f} s",
            ),
        ],
    )


def fairness(runs: list[Run]) -> str:
    """Table of one namespace while another one gets many jobs."""
    run = runs[0]
    return formatting.table(
        ["Figure", "Without the burst", "During it"],
        [
            (
                f"the operator alone, {run['jobs']} jobs at once, 50 ms for each request: until its first status",
                "",
                f"at most {run['queue_served_max_s']:.2f} s of 20, while {run['queue_left']:.0f} jobs wait",
            ),
            (
                "with an API server: the request to suspend a job",
                f"p50 {run['quiet_request_s']:.2f} s",
                f"p50 {run['during_request_s']:.2f} s",
            ),
            *(
                (
                    what,
                    f"p50 {run[f'quiet_{part}_s']:.2f} s",
                    f"p50 {run[f'during_{part}_s']:.2f} s, at most {run[f'during_{part}_max_s']:.2f} s "
                    f"of {run['suspensions']}",
                )
                for what, part in (
                    ("from then until the operator's first status", "served"),
                    ("and until its pods are gone", "suspended"),
                )
            ),
        ],
    )


def _caused(run: Run, unit: str, by: str = "server") -> float:
    """What the operator causes for a job, in ms of CPU time or MiB allocated: without the user's own request."""
    return float(run[f"{by}_{unit}"] - run[f"submission_{unit}"])


def creation(runs: list[Run]) -> str:
    """Table of jobs that are created at once, compared with forced applies."""
    run = runs[0]
    naive_cpu = _caused(run, "cpu_ms", "naive_server")
    naive_mib = _caused(run, "mib", "naive_server")

    return formatting.table(
        COLUMNS,
        [
            ("jobs a minute", f"{run['jobs_per_minute']:,.0f}"),
            ("CPU time of the operator for a job", f"{run['operator_cpu_ms']:.1f} ms"),
            (
                "CPU time of the API server for a job, and memory that it allocates",
                f"{run['server_cpu_ms']:.1f} ms, {run['server_mib']:.1f} MiB",
            ),
            (
                "of which the user's request alone takes",
                f"{run['submission_cpu_ms']:.1f} ms, {run['submission_mib']:.1f} MiB",
            ),
            ("the rest, which the operator causes", f"{_caused(run, 'cpu_ms'):.1f} ms, {_caused(run, 'mib'):.1f} MiB"),
            (
                "the same, by six forced applies",
                f"{naive_cpu:.1f} ms: ours is {_caused(run, 'cpu_ms') / naive_cpu:.2f} of it; {naive_mib:.1f} MiB: "
                f"{_caused(run, 'mib') / naive_mib:.2f} of it",
            ),
            (
                "writes of the operator for a job",
                f"{run['writes']:.1f}: NetworkPolicy, RayJob, status, and a share of its Leases",
            ),
        ],
    )


def cache_memory(runs: list[Run]) -> str:
    """Table of the memory of the cache alone."""
    run = runs[0]
    return formatting.table(
        ["Resident memory", "MiB"],
        [
            ("without jobs", f"{run['empty_mib']:.0f}"),
            (
                f"with {run['jobs']:,.0f} jobs, their RayJobs and NetworkPolicies",
                f"{run['full_mib']:.0f}: {run['kib_per_job']:.1f} KiB for each job",
            ),
            ("after all of them were deleted", f"{run['deleted_mib']:.0f}"),
        ],
    )


def events(runs: list[Run]) -> str:
    """The cost of a job's event through kopf and through the informer."""

    def least(name: str) -> float:
        return float(min(run[name] for run in runs))

    return formatting.table(
        [f"{runs[0]['jobs']:,.0f} jobs of a list, least of {len(runs)} runs", "kopf", "the informer"],
        [
            ("CPU time of an event", f"{least('kopf_cpu_ms'):.2f} ms", f"{least('informer_cpu_ms'):.2f} ms"),
            (
                "memory at the peak, for each job",
                f"{least('kopf_peak_kib'):.1f} KiB",
                f"{least('informer_peak_kib'):.1f} KiB",
            ),
        ],
    )


TABLES: Tables = {
    "operator_events": events,
    "operator_scale": scale,
    "operator_fairness": fairness,
    "operator_create": creation,
    "operator_memory": cache_memory,
}
