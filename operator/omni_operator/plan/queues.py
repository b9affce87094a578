"""PURE: labels and annotations of a job for the scheduler whose queue it is in."""

# Annotation of a job whose number of pods may change in a Kueue queue, and scheduling gate of its pods: Kueue adds the
# gate if it supports that, and removes it from as many pods as the queue has admitted.
ELASTIC_JOB = "kueue.x-k8s.io/elastic-job"
# Schedulers read labels and annotations of these groups from the RayJob (queue, gang).
SCHEDULERS = (
    "kueue.x-k8s.io/",
    "volcano.sh/",
    "scheduling.volcano.sh/",
    "kai.scheduler/",
    "runai/",
    "yunikorn.apache.org/",
    "scheduling.k8s.io/",
)
SCHEDULER_KEYS = frozenset(
    {
        "ray.io/scheduler-name",
        "ray.io/priority-class-name",
        "ray.io/gang-scheduling-enabled",
        "applicationId",
        "queue",
        "ring-controller.atlas",
        "fault-scheduling",
    }
)


def scheduler_entries(entries: dict[str, str]) -> dict[str, str]:
    """Labels or annotations that schedulers read from the RayJob."""
    return {name: value for name, value in entries.items() if name.startswith(SCHEDULERS) or name in SCHEDULER_KEYS}
