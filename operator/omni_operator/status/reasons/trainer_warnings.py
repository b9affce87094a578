"""PURE: what the warnings of a trainer mean, and what to do."""

from __future__ import annotations

from .explanations import LOG, STATUS, Explanation

TRAINER_WARNINGS: dict[str, Explanation] = {
    "SamplesCollapsed": Explanation(
        shown=("event", "warning"),
        meaning="Samples of different prompts, or the rewards of one prompt's samples, have become alike: the policy "
        "has collapsed, or the reward is saturated.",
        look=STATUS,
        action="Look at the images in the report; lower the learning rate, or hold the policy to the base model "
        "(`actor.use_kl_loss`).",
    ),
    "PolicyDiverged": Explanation(
        shown=("warning",),
        meaning="Updates move the policy too far: nearly all ratios of new to old policy leave the clip range, or the "
        "KL divergence of a step is large. The message has the numbers.",
        look=STATUS,
        action="Look at the images in the report; lower the learning rate, or hold the policy to the base model "
        "(`actor.use_kl_loss`), and start again from a checkpoint before it.",
    ),
    "RewardConstant": Explanation(
        shown=("warning",),
        meaning="Since the run began, all samples of each prompt had the same reward, so nothing is learned.",
        look=STATUS,
        action="Look at scores and images in the report; check the scorer, and the ground truths that it compares "
        "with. If it is right, take easier or harder prompts, or a reward with more than two values.",
    ),
    "SamplesNotScored": Explanation(
        shown=("warning",),
        meaning="A scorer gave no score for some samples. They are not trained on; `status.progress.unscoredSamples` "
        "counts them. The message has the first error.",
        look=STATUS,
        action="Read why in the message. With more than `spec.reward.maxFailedShare` of a step, the run stops.",
    ),
    "MetricNotFinite": Explanation(
        shown=("warning",),
        meaning="A field that a scorer returned next to the score is NaN or infinite for some samples. Its mean is "
        "without them.",
        look=STATUS,
        action="Correct the scorer, or let it leave out the field.",
    ),
    "CheckpointsSetAside": Explanation(
        shown=("warning",),
        meaning="`trainer.resume_mode=disable` found checkpoints of an earlier run, and renamed their folder.",
        look=STATUS,
        action="Nothing; delete the folder that the message names when you do not need it.",
    ),
    "ResumedWithChanges": Explanation(
        shown=("warning",),
        meaning="The run folder has a checkpoint of a run with other settings of what is learned, such as another "
        "reward or learning rate. The run continues from it; the message has both values.",
        look=STATUS,
        action="Nothing, if intended. Otherwise use another name, or `spec.checkpoint.resume: Never`.",
    ),
    "OlderSamplesNotLimited": Explanation(
        shown=("warning",),
        meaning="Batches are generated ahead, and nothing limits how far the policy moves from their samples.",
        look=STATUS,
        action="Add the overrides that the message names, or lower `spec.rollout.batchesAhead`.",
    ),
    "ClippingOneSided": Explanation(
        shown=("warning",),
        meaning="Before anything was learned in a step, the clip range excluded far more terms with a negative "
        "advantage than with a positive one, or the reverse: engine and trainer compute log-probabilities differently.",
        look=STATUS,
        action="Raise `diffusion_loss.clip_ratio`, or one of the other changes that the message names.",
    ),
    "PromptsTruncated": Explanation(
        shown=("warning",),
        meaning="Prompts have more tokens than the model's text encoder reads "
        "(`spec.rollout.pipeline.maxSequenceLength`): images are generated without the end of these prompts.",
        look=STATUS,
        action="Raise it, as far as the model supports, or shorten the prompts.",
    ),
    "CheckpointDropped": Explanation(
        shown=("warning",),
        meaning="The run failed while a checkpoint was being written; the one before is the newest.",
        look=STATUS,
        action="Nothing; the next attempt resumes from the checkpoint that the message names.",
    ),
    "ReplicaRemoved": Explanation(
        shown=("warning",),
        meaning="A replica of the engine missed an update, or one of the judge does not answer. It is used no more.",
        look=LOG,
        action="Read why in the message; the run continues with the other replicas, and starts another one.",
    ),
    "ReplicaNotStarted": Explanation(
        shown=("warning",),
        meaning="A replica of engine or judge did not start. The trainer tries again, and continues with the others.",
        look=LOG,
        action="Read why in the message; `kubectl get pods` shows the state of the rollout and reward pods.",
    ),
    "SettingsWithoutEffect": Explanation(
        shown=("warning",),
        meaning="The job sets trainer settings that have no effect here; the message says why for each.",
        look="drl validate JOB.yaml",
        action="Remove them from `spec.algorithm.overrides`.",
    ),
    "ReportNotWritten": Explanation(
        shown=("warning",),
        meaning="report.html could not be written at the end of a run, or for the results that are sent elsewhere.",
        look=LOG,
        action="Read the message; `drl report` writes the report again from the run folder.",
    ),
}
