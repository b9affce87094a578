"""PURE: rows of the table of reasons for whatever is wrong with a job."""

from omni_operator.api.names import JOB_LABEL

from .names import Reason

STATUS = "kubectl get drl NAME --output=yaml"
PODS = f"kubectl describe pods --selector={JOB_LABEL}=NAME"
LOG = "drl logs NAME"
EVENTS = "kubectl events --for=diffusionrljob/NAME"

_REFUSED = ("Admitted=False", "Ready=False", "event")
_FAILED = ("Failed=True", "Stalled=True", "failure")
_NOT_SCALED = ("RolloutsScaled=False", "RewardsScaled=False")

# The job waits until the job, the cluster or the operator's permissions are changed.
WAITING = {
    "InvalidSpec": Reason(
        shown=("Admitted=False", "Ready=False", "Updated=False", "Stalled=True", "Succeeded=Unknown", "event"),
        meaning="The spec is invalid, or this cluster's policy refuses it. The message names each field. A running "
        "attempt continues with the spec that it was created from.",
        look="drl validate --cluster JOB.yaml",
        action="Correct the spec; `drl validate --cluster` reports every problem. `drl suspend NAME` stops the job as "
        "it is. On Kubernetes 1.29 the API server may refuse that: then change `suspend` and the field that it names "
        "together, or delete the job.",
    ),
    "Queued": Reason(
        shown=("Admitted=False", "Ready=False", "Succeeded=Unknown"),
        meaning="The queue has not admitted the attempt: `spec.suspend` of its RayJob is true.",
        look="kubectl get workloads.kueue.x-k8s.io --output=wide",
        action="The queue decides; ask for less, set `spec.rollout.minReplicas`, or see the RayJob's Workload.",
    ),
    "KubeRayNotInstalled": Reason(
        shown=_REFUSED,
        meaning="The cluster has no RayJobs, because KubeRay is not installed.",
        look="kubectl get crd rayjobs.ray.io",
        action="Install KubeRay; the operator finds it within a minute, and the job starts.",
    ),
    "Forbidden": Reason(
        shown=_REFUSED,
        meaning="The operator's service account lacks a permission, which the message names.",
        look="kubectl get clusterroles,roles --all-namespaces --selector=app.kubernetes.io/name=omni-operator",
        action="Install the chart with `rbac.create=true`, or grant what docs/operate/install.md lists; the operator "
        "tries again.",
    ),
    "ChildRefused": Reason(
        shown=_REFUSED,
        meaning="The API server refused an object of the job; the message quotes it. Usually a policy or a webhook.",
        look=EVENTS,
        action="Change what the message names, in the job or in the policy; the operator tries again.",
    ),
    "QuotaExceeded": Reason(
        shown=(*_REFUSED, *_NOT_SCALED, *_FAILED),
        meaning="A ResourceQuota of the namespace refuses the RayJob or its pods. It is a failure if "
        "`spec.preRunningDeadlineSeconds` passes meanwhile.",
        look="kubectl describe resourcequota",
        action="Ask for less, or raise the ResourceQuota of the namespace. Where the message says `must specify`, set "
        "what it names in `resources` of `spec.head`, `spec.trainer` and other pods.",
    ),
    "NameTaken": Reason(
        shown=_REFUSED,
        meaning="An object of another owner has the name of an object of this job. The operator never changes it.",
        look=EVENTS,
        action="Rename the job, or delete the object that the message names.",
    ),
    "ServerFailed": Reason(
        shown=_REFUSED,
        meaning="The API server answered the same request three times in a row with 500, or not in time, as when a "
        "webhook cannot be called or does not answer.",
        look="kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
        action="Repair or remove the webhook that the message names, or change the job.",
    ),
    "NamespaceTerminating": Reason(
        shown=("Admitted=False", "Ready=False"),
        meaning="The namespace is being deleted, and the job with it.",
        look="kubectl get namespace",
        action="Create the job in another namespace.",
    ),
    "Unschedulable": Reason(
        shown=("Ready=False", *_NOT_SCALED, "event", *_FAILED),
        meaning="The scheduler finds no node for a pod: too few accelerators, or selectors and taints that no node "
        "meets. It is a failure if `spec.preRunningDeadlineSeconds` passes meanwhile.",
        look=PODS,
        action="Ask for less, correct the selectors, or add nodes that have the resource. With "
        "`spec.rollout.minReplicas`, an attempt starts without rollout pods that find no node.",
    ),
    "ImagePullBackOff": Reason(
        shown=("Ready=False", "event"),
        meaning="A node cannot pull the image. After 60 s the attempt fails with `ImagePullFailed`.",
        look=PODS,
        action="Check the name of the image and the pull secrets.",
    ),
    "ClaimNotFound": Reason(
        shown=("Ready=False", "event"),
        meaning="A PersistentVolumeClaim that the job names does not exist; the pods start when it does.",
        look="kubectl get persistentvolumeclaims",
        action="Create the PersistentVolumeClaim in the namespace of the job, or correct its name.",
    ),
    "ClaimNotBound": Reason(
        shown=("Ready=False", "event"),
        meaning="A PersistentVolumeClaim of the job has no volume: the cluster has no storage class, or not the one "
        "that the claim names, or nothing provides a volume of this size and access mode.",
        look="kubectl describe persistentvolumeclaims",
        action="Name a class of `kubectl get storageclass` in the claim, or create a volume for it.",
    ),
    "CreateContainerConfigError": Reason(
        shown=("Ready=False", "event"),
        meaning="The kubelet cannot create a container, usually because a Secret or ConfigMap is missing.",
        look=PODS,
        action="Create what the message names; the pod then starts.",
    ),
    "PodsRefused": Reason(
        shown=("Ready=False", "event"),
        meaning="KubeRay cannot create pods: they are invalid, or a policy or webhook refuses them.",
        look="kubectl describe rayclusters",
        action="Correct what the message names, in the job or in the policy. Fields in the message are the "
        "pod's; `containers[0]` is Ray's.",
    ),
    "HeadNotReady": Reason(
        shown=("Ready=False",),
        meaning="The pod of the Ray head was ready and is not. After 60 s the attempt fails with `HeadLost`.",
        look=PODS,
        action="Wait; if it recurs, look for restarts and probes in the description of the head's pod.",
    ),
    "PodsNotReady": Reason(
        shown=("Ready=False",),
        meaning="Ray runs the job, but not all of its pods are ready; the message counts them.",
        look=PODS,
        action="Wait; if it lasts, look for the pod that is not ready.",
    ),
    "TooFewRollouts": Reason(
        shown=("Ready=False",),
        meaning="Fewer rollout pods than `spec.rollout.minReplicas` are ready; the trainer waits.",
        look=PODS,
        action="Wait; if it lasts, look for what the rollout pods wait for: the attempt fails after 30 minutes.",
    ),
    "AtMaximum": Reason(
        shown=_NOT_SCALED,
        meaning="More samples wait for generation, or more requests for the judge, than the pods of "
        "`autoscaling.maxReplicas` in `spec.rollout` or `spec.reward.model` are meant for. The run continues.",
        look=STATUS,
        action="Nothing, or raise `maxReplicas`.",
    ),
    "InQueue": Reason(
        shown=_NOT_SCALED,
        meaning="A Kueue queue has admitted the pods of the attempt; `autoscaling` adds and removes none.",
        look=STATUS,
        action='Add the annotation `kueue.x-k8s.io/elastic-job: "true"`, or remove `autoscaling`.',
    ),
    "RolloutPodLost": Reason(
        shown=("event",),
        meaning="A rollout pod was lost, or is not ready any more. The others generate its samples again.",
        look=PODS,
        action="Nothing: KubeRay starts another one, and its engines join with the next weight update.",
    ),
    "ReconcileError": Reason(
        shown=("ReconcileError=True", "event"),
        meaning="An error in the operator, or a status that the API server refuses, as with an old definition (CRD).",
        look="kubectl logs deployment/omni-omni-operator --namespace=omni-system",
        action="With `DefinitionOutdated`, apply `crds/`; else report the message. Another spec, or deletion, ends it.",
    ),
}

# The attempt ended.
FAILURES = {
    "ImagePullFailed": Reason(
        shown=_FAILED,
        meaning="An image could not be pulled for 60 s, or its name is invalid.",
        look=STATUS,
        action="Correct the image, or name a pull secret (`spec.runtime.imagePullSecrets`).",
    ),
    "InvalidConfig": Reason(
        shown=_FAILED,
        meaning="KubeRay refused the RayJob, or the trainer refused its settings (exit code 2).",
        look=LOG,
        action="Correct the setting that the message names; `drl validate` finds most of them.",
    ),
    "StartFailed": Reason(
        shown=_FAILED,
        meaning="A container restarted 4 times before Ray's container ran.",
        look=PODS,
        action="Read the message and the log of the container that restarts.",
    ),
    "HeadLost": Reason(
        shown=_FAILED,
        meaning="The pod of the Ray head was lost. The next attempt resumes from the newest checkpoint.",
        look=PODS,
        action="Set `spec.backoffLimit`, so that another attempt follows; look for a node that was lost.",
    ),
    "WorkerLost": Reason(
        shown=_FAILED,
        meaning="Ray's container of a running job restarted 4 times, or Ray lost a trainer pod and its node answers.",
        look=PODS,
        action="Read the message and the log of the container that restarts.",
    ),
    "Preempted": Reason(
        shown=_FAILED,
        meaning="A pod was preempted or evicted, or its node was drained or lost.",
        look="kubectl get events --field-selector=reason=Preempted",
        action="Another attempt follows, up to `spec.disruptionLimit`; raise it, or the priority class of the job.",
    ),
    "OutOfMemory": Reason(
        shown=_FAILED,
        meaning="A container ran out of memory, or an accelerator did.",
        look=LOG,
        action="Raise the memory or lower the batch; `drl fit JOB.yaml` says which settings fit on a device.",
    ),
    "AcceleratorFault": Reason(
        shown=_FAILED,
        meaning="The driver reported a fault of an accelerator, e.g. an Xid or an uncorrectable memory error.",
        look=LOG,
        action="Drain the node that the message names and check its accelerators.",
    ),
    "CollectiveTimeout": Reason(
        shown=_FAILED,
        meaning="A collective operation (NCCL, HCCL, Gloo) timed out: a rank or a network link is gone.",
        look=LOG,
        action="Look for another failure at the same time; check the network between the nodes.",
    ),
    "WeightSyncFailed": Reason(
        shown=_FAILED,
        meaning="An engine did not get all weights, or a sample came from old ones. No sample was used after that.",
        look=LOG,
        action="Read the message; it names the replica and the version.",
    ),
    "ApplicationError": Reason(
        shown=_FAILED,
        meaning="The trainer ended with an error that no other reason covers.",
        look=LOG,
        action="Read the message; it is the trainer's error.",
    ),
    "DeadlineExceeded": Reason(
        shown=_FAILED,
        meaning="`spec.activeDeadlineSeconds` is over, for all attempts together.",
        look=STATUS,
        action="Raise the deadline, delete the job, and submit it again: under the same name it resumes on its claim.",
    ),
    "PreRunningDeadlineExceeded": Reason(
        shown=_FAILED,
        meaning="The trainer did not start within `spec.preRunningDeadlineSeconds`.",
        look=PODS,
        action="Read in the message what the pods waited for; raise the deadline if they need longer.",
    ),
    "ChildDeleted": Reason(
        shown=("failure",),
        meaning="A user or another controller deleted the RayJob. Another attempt follows; it is not counted.",
        look="kubectl get rayjobs",
        action="Suspend or delete the job instead of its RayJob.",
    ),
}

# The job runs, but its results may not be what its author wants.
WARNINGS = {
    "SamplesCollapsed": Reason(
        shown=("event", "warning"),
        meaning="Samples of different prompts, or the rewards of one prompt's samples, have become alike: the policy "
        "has collapsed, or the reward is saturated.",
        look=STATUS,
        action="Look at the images in the report; lower the learning rate, or hold the policy to the base model "
        "(`actor.use_kl_loss`).",
    ),
    "SamplesDegraded": Reason(
        shown=("warning",),
        meaning="The training images have become much darker, brighter, flatter, noisier, more saturated or more alike "
        "than in the first steps of the run. The policy may exploit a scorer that does not see it.",
        look=STATUS,
        action="Look at the images in the report. If the reward does not ask for this, add a scorer that sees it, or "
        "hold the policy to the base model, and start again from a checkpoint before it.",
    ),
    "PolicyDiverged": Reason(
        shown=("warning",),
        meaning="Updates move the policy too far: nearly all ratios of new to old policy leave the clip range, the KL "
        "divergence of a step is large, or the velocities of new and old policy or base model are far apart.",
        look=STATUS,
        action="Look at the images in the report; lower the learning rate, or hold the policy to the base model "
        "(`actor.use_kl_loss`), and start again from a checkpoint before it.",
    ),
    "RewardConstant": Reason(
        shown=("warning",),
        meaning="Since the run began, all samples of each prompt had the same reward, so nothing is learned.",
        look=STATUS,
        action="Look at scores and images in the report; check the scorer, and the ground truths that it compares "
        "with. If it is right, take easier or harder prompts, or a reward with more than two values.",
    ),
    "RewardOveroptimized": Reason(
        shown=("warning",),
        meaning="The trained reward rises while a scorer with `use: Evaluation` falls: the model exploits the reward. "
        "The message has the numbers.",
        look=STATUS,
        action="Look at the images in the report. Start again from an earlier checkpoint, hold the policy to the base "
        "model (`actor.use_kl_loss`), or train on several scorers.",
    ),
    "SamplesNotScored": Reason(
        shown=("warning",),
        meaning="A scorer gave no score for some samples. Those without a reward are not trained on; "
        "`status.progress.unscoredSamples` counts them. The message has the first error.",
        look=STATUS,
        action="Read why in the message. With more than `spec.reward.maxFailedShare` of a step, the run stops.",
    ),
    "MetricNotFinite": Reason(
        shown=("warning",),
        meaning="A field that a scorer returned next to the score is NaN or infinite for some samples. Its mean is "
        "without them.",
        look=STATUS,
        action="Correct the scorer, or let it leave out the field.",
    ),
    "CheckpointsSetAside": Reason(
        shown=("warning",),
        meaning="`trainer.resume_mode=disable` found checkpoints of an earlier run, and renamed their folder.",
        look=STATUS,
        action="Nothing; delete the folder that the message names when you do not need it.",
    ),
    "ResumedWithChanges": Reason(
        shown=("warning",),
        meaning="The run folder has a checkpoint of a run with other training settings, such as another "
        "reward or learning rate. The run continues from it; the message has both values.",
        look=STATUS,
        action="Nothing, if intended. Otherwise use another name, or `spec.checkpoint.resume: Never`.",
    ),
    "OlderSamplesNotLimited": Reason(
        shown=("warning",),
        meaning="Batches are generated ahead, and nothing limits how far the policy moves from their samples.",
        look=STATUS,
        action="Add the overrides that the message names, or lower `spec.rollout.batchesAhead`.",
    ),
    "ClippingOneSided": Reason(
        shown=("warning",),
        meaning="Before anything was learned in a step, the clip range excluded far more terms with a negative "
        "advantage than with a positive one, or the reverse: engine and trainer compute log-probabilities differently.",
        look=STATUS,
        action="Raise `diffusion_loss.clip_ratio`, or one of the other changes that the message names.",
    ),
    "RecipeRisk": Reason(
        shown=("warning",),
        meaning="Settings that published runs report as harmful, or do not use; each with its reason and source.",
        look="drl validate JOB.yaml",
        action="Change them, or ignore the message if they are meant. `drl validate` names them before a run.",
    ),
    "OffloadingNotNeeded": Reason(
        shown=("warning",),
        meaning="As `drl fit` estimates, the run fits on its accelerators without this offloading or sleep, which "
        "costs time.",
        look=STATUS,
        action="Set what the message names.",
    ),
    "PromptsTruncated": Reason(
        shown=("warning",),
        meaning="Prompts have more tokens than the model's text encoder reads "
        "(`spec.rollout.pipeline.maxSequenceLength`): images are generated without the end of these prompts.",
        look=STATUS,
        action="Raise it, as far as the model supports, or shorten the prompts.",
    ),
    "CheckpointDropped": Reason(
        shown=("warning",),
        meaning="The run failed while a checkpoint was being written; the one before is the newest.",
        look=STATUS,
        action="Nothing; the next attempt resumes from the checkpoint that the message names.",
    ),
    "ReplicaRemoved": Reason(
        shown=("warning",),
        meaning="A replica of the engine missed an update, or one of the judge does not answer. It is used no more.",
        look=LOG,
        action="Read why in the message; the run continues with the other replicas, and starts another one.",
    ),
    "ReplicaNotStarted": Reason(
        shown=("warning",),
        meaning="A replica of engine or judge did not start. The trainer tries again, and continues with the others.",
        look=LOG,
        action="Read why in the message; `kubectl get pods` shows the state of the rollout and reward pods.",
    ),
    "SettingsWithoutEffect": Reason(
        shown=("warning",),
        meaning="The job sets trainer settings that have no effect here; the message says why for each.",
        look="drl validate JOB.yaml",
        action="Remove them from `spec.algorithm.overrides`.",
    ),
    "ReportNotWritten": Reason(
        shown=("warning",),
        meaning="report.html could not be written at the end of a run, or for the results that are sent elsewhere.",
        look=LOG,
        action="Read the message; `drl report` writes the report again from the run folder.",
    ),
    "HeartbeatStopped": Reason(
        shown=("ProgressStalled=True",),
        meaning="The trainer has not reported for 10 minutes, or for 5 steps if they take longer. The job continues.",
        look=LOG,
        action="Read the log of the trainer pod; suspend the job if it hangs.",
    ),
    "ReplicaBehind": Reason(
        shown=("WeightsInSync=False",),
        meaning="An engine is more versions behind the trainer than `spec.rollout.staleness` allows.",
        look=LOG,
        action="Read the log of the engine; the trainer refuses its samples.",
    ),
    "WeightsOld": Reason(
        shown=("WeightsInSync=False",),
        meaning="The last weight sync was longer ago than `spec.rollout.staleness` allows.",
        look=LOG,
        action="Read the log of the trainer pod; raise the limit if steps take that long.",
    ),
    "ResultsOnEmptyDir": Reason(
        shown=("ResultsKept=False", "event"),
        meaning="No claim is named: checkpoints, adapter and report are deleted with the pods.",
        look="drl validate --cluster JOB.yaml",
        action="Name a PersistentVolumeClaim in `spec.checkpoint.claimName`.",
    ),
    "OutputNotSent": Reason(
        shown=("OutputSent=False", "warning", *_FAILED),
        meaning="The store or hub of `spec.output` did not take results before `deadlineSeconds`, or the hub refused "
        "them; they are in the run folder. After a checkpoint it is a warning, at the start and the end of an attempt "
        "it fails the attempt.",
        look=LOG,
        action="Correct URL, endpoint, keys, token or network policy by the message; the next checkpoint or attempt "
        "sends them. `drl fetch NAME` copies them from the claim.",
    ),
    "NoVendor": Reason(
        shown=("AcceleratorChosen=False", "event"),
        meaning="No accelerator is named: the pods request none and train on the CPU.",
        look="drl validate --cluster JOB.yaml",
        action="Write NVIDIA or Ascend in `spec.trainer.accelerator.vendor`, or CPU to confirm.",
    ),
    "NextAttempt": Reason(
        shown=("Updated=False",),
        meaning="The spec changed, and the running attempt keeps the old one; one whose trainer does not run yet is "
        "replaced at once. The old spec is also kept by rollout and reward pods whose spec "
        "changed after an upgrade of the operator, or of its default image, that renders pods otherwise.",
        look=STATUS,
        action="Nothing; suspend and resume the job to use the new spec now.",
    ),
    "RollingUpdatePaused": Reason(
        shown=("Updated=False",),
        meaning="The job's annotation `diffusionrl.io/pause-rolling-update` keeps rollout and reward pods from being "
        "replaced by pods of the current spec.",
        look=STATUS,
        action="`kubectl annotate drl NAME diffusionrl.io/pause-rolling-update-` continues.",
    ),
    "RolledBack": Reason(
        shown=("Updated=False", "event"),
        meaning="Rollout or reward pods with the current spec did not serve within "
        "`updateStrategy.progressDeadlineSeconds` of `spec.rollout` or `spec.reward.model`. Pods of the spec before "
        "replace them; the message says what they waited for. The next attempt would start with the current spec.",
        look=PODS,
        action="Correct the spec of these pods, or change it back. The same spec is not tried again in this attempt.",
    ),
    "ChangedByOthers": Reason(
        shown=("Updated=False", "event"),
        meaning="Another program changes an object of the job again after each correction by the operator: number or "
        "limits of the pods of a worker group, say, rules of the NetworkPolicy, or the job's status. The message names "
        "it and, if the API server tells it, the field manager of that program. The operator corrects it again after "
        "pauses that grow to 60 s. Or the entrypoint or annotations of the RayJob were edited, which are not changed "
        "back.",
        look="kubectl get rayjobs,rayclusters,networkpolicies --show-managed-fields --output=yaml",
        action="Stop the other program, or exclude the object from what it manages. Delete a RayJob that was edited.",
    ),
    "SidecarNotRunning": Reason(
        shown=("Ready=False", "event", "warning"),
        meaning="A container that is not Ray's has ended, restarts or cannot start, as one of a webhook or of "
        "`podTemplate`. A training that runs goes on; one that starts waits, because KubeRay waits for all containers.",
        look=PODS,
        action="Correct the container that the message names, in the job or in the webhook.",
    ),
    "Warning": Reason(
        shown=("warning",),
        meaning="A warning that this version of the operator has no reason for; the message begins with the trainer's.",
        look=STATUS,
        action="Read the message.",
    ),
    "TrainerWarning": Reason(
        shown=("event",),
        meaning="The event of every warning of the trainer but `SamplesCollapsed`; it begins with the reason.",
        look=STATUS,
        action="Read `status.warnings`.",
    ),
    "WeightsBehind": Reason(
        shown=("event",),
        meaning="`WeightsInSync` became False; see `ReplicaBehind` and `WeightsOld`.",
        look=STATUS,
        action="See that reason.",
    ),
    "ProgressStalled": Reason(
        shown=("event",),
        meaning="The condition of that name became True: `HeartbeatStopped`.",
        look=LOG,
        action="See that reason.",
    ),
    "AttemptFailed": Reason(
        shown=("event",),
        meaning="An attempt failed; the event has the reason of the failure.",
        look=STATUS,
        action="See that reason.",
    ),
    "Failed": Reason(
        shown=("event",),
        meaning="The job failed finally; the event has the reason of the last failure.",
        look=STATUS,
        action="See that reason; `drl why NAME` prints it with its remedy.",
    ),
}
