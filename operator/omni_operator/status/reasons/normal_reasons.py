"""PURE: reasons of conditions and events of a job with which nothing is wrong."""

from __future__ import annotations

from .explanations import Explanation

NORMAL: dict[str, Explanation] = {
    name: Explanation(shown=shown, meaning=meaning)
    for name, shown, meaning in (
        ("ChildUnsuspended", ("Admitted=True",), "The attempt may run."),
        (
            "PartiallyAdmitted",
            ("Admitted=True", "event"),
            "The queue had no room for all rollout pods, and admitted the attempt with fewer, but no fewer than "
            "`spec.rollout.minReplicas`. The message has both numbers.",
        ),
        ("TrainerAndRolloutsServing", ("Ready=True",), "All pods are ready."),
        ("RolloutsMissing", ("Ready=True",), "Rollout pods are missing, but not too many: the run continues."),
        ("JudgesMissing", ("Ready=True",), "Reward pods are missing, but not all: the others answer their questions."),
        (
            "WithinLimits",
            ("RolloutsScaled=True", "RewardsScaled=True"),
            "There are as many pods as the samples or requests that wait need.",
        ),
        (
            "NotAutoscaled",
            ("RolloutsScaled=Unknown", "RewardsScaled=Unknown"),
            "`spec.rollout` or `spec.reward.model` has no `autoscaling`.",
        ),
        ("InSync", ("WeightsInSync=True",), "All engines have weights that are new enough."),
        ("AsRequested", ("Updated=True",), "The running attempt has the current spec."),
        (
            "RollingUpdate",
            ("Updated=False", "event"),
            "Pods are being replaced by pods of the current spec.",
        ),
        ("PodsUpdated", ("event",), "All rollout and reward pods have the current spec, and serve."),
        ("StepAdvancing", ("ProgressStalled=False",), "The trainer reports."),
        ("NotRequested", ("Suspended=False",), "`spec.suspend` is false."),
        ("NoFailure", ("Failed=False", "Stalled=False"), "The job has not failed."),
        ("VolumeMounted", ("ResultsKept=True",), "Results are on a volume that outlives the pods."),
        ("OutputGiven", ("ResultsKept=True",), "Results are sent to `spec.output.url`; checkpoints are lost."),
        ("Sent", ("OutputSent=True",), "The newest results were sent; the message says which, and where they are."),
        ("NothingSent", ("OutputSent=Unknown",), "The trainer has sent nothing yet."),
        ("NoOutput", ("OutputSent=Unknown",), "The job has no `spec.output`."),
        ("AttemptSucceeded", ("Succeeded=True",), "The training finished."),
        ("Finished", ("Admitted=False", "Ready=True"), "The job succeeded; nothing is waiting to be admitted."),
        ("AttemptCreated", ("Admitted=Unknown", "Succeeded=Unknown", "event"), "The RayJob of an attempt was created."),
        ("Starting", ("Ready=False", "Succeeded=Unknown"), "The pods of the attempt start."),
        ("Running", ("Succeeded=Unknown", "event"), "Ray runs the trainer; the message has its phase."),
        (
            "BetweenAttempts",
            ("Admitted=Unknown", "Ready=False", "Succeeded=Unknown"),
            "Objects of the last attempt are being deleted, or the pause before the next one lasts.",
        ),
        ("NotRunning", ("WeightsInSync=Unknown", "ProgressStalled=Unknown"), "Known only while the trainer runs."),
        (
            "NoReports",
            ("WeightsInSync=Unknown", "ProgressStalled=Unknown", "RolloutsScaled=Unknown", "RewardsScaled=Unknown"),
            "The trainer has not reported yet. It never does with `reports.enabled=false` of the chart.",
        ),
        ("ReplicasUnknown", ("WeightsInSync=Unknown",), "No engine has reported its version yet."),
        ("CheckpointRequested", ("Suspended=Unknown",), "The trainer saves a checkpoint before it is suspended."),
        ("Stopping", ("Suspended=Unknown",), "The pods are being deleted."),
        ("Suspending", ("Admitted=False", "Ready=False", "Succeeded=Unknown", "event"), "The job is being suspended."),
        (
            "Suspended",
            ("Suspended=True", "Admitted=False", "Ready=True", "Succeeded=Unknown", "event"),
            "The job is suspended; `drl resume NAME` continues from the last checkpoint.",
        ),
        ("Resumed", ("event",), "`spec.suspend` became false."),
        ("CheckpointSaved", ("event",), "The checkpoint for a suspension is complete."),
        ("ProgressResumed", ("event",), "The trainer reports again."),
        ("WeightsInSync", ("event",), "All engines have the trainer's weights again."),
        ("Succeeded", ("event",), "The job succeeded."),
        ("LeaderElected", ("event",), "Another replica of the operator leads; the event is about the Lease."),
    )
}
