"""State between the passes of one process. If it is lost, requests may be repeated, and nothing else happens."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from omni_operator.cluster.kinds import Key, Kind
from omni_operator.reconcile.corrections import Corrections
from omni_operator.reconcile.refused_requests import RefusedRequests
from omni_operator.status.observed.observation import Attempt
from omni_operator.status.observed.timestamps import EARLIEST


@dataclass(slots=True)
class JobMemory:
    """State between passes over one job.

    Attributes:
        uid, generation: of the job.
        written: when its status was last written.
        conflicts: passes in a row that ended with a conflict.
        altered: whether another status was stored than the one that was sent.
        stored: digest of the status that was stored last; empty if this process wrote none.
        lost: name of a RayJob that the status records, and that the API server does not have.
        lost_cluster: uid of such a RayCluster.
        ensured: last change of the shared objects when these were last compared; None while something is missing or
            waits to be corrected.
        corrections: corrections of the job's objects, which other clients may change again each time.
        queue_reason: sentence about why Kueue has not admitted the attempt; empty if it is not known.
        queue_reread: when to read that again.
        seen: states of head and attempt, and since when this process sees them.
    """

    uid: str
    generation: int
    written: datetime | None = None
    conflicts: int = 0
    altered: bool = False
    stored: str = ""
    refused: RefusedRequests = field(default_factory=RefusedRequests)
    lost: str | None = None
    lost_cluster: str | None = None
    ensured: int | None = None
    corrections: Corrections = field(default_factory=Corrections)
    queue_reason: str = ""
    queue_reread: datetime = EARLIEST
    seen: dict[str, tuple[object, datetime]] = field(default_factory=dict)

    def with_times_seen(self, attempt: Attempt, now: datetime) -> Attempt:
        """The attempt, with times since which this process sees head and failure: KubeRay has another clock."""
        cluster = attempt.cluster
        rayjob = attempt.rayjob
        if cluster:
            state = cluster.uid, cluster.head_ready, cluster.head_since
            cluster = replace(cluster, head_since=self._since("head", state, now))
        if rayjob and rayjob.deployment == "Failed":
            rayjob = replace(rayjob, ended=self._since("failure", rayjob.uid, now))
        return replace(attempt, cluster=cluster, rayjob=rayjob)

    def _since(self, what: str, state: object, now: datetime) -> datetime:
        if what not in self.seen or self.seen[what][0] != state:
            self.seen[what] = state, now
        return self.seen[what][1]


@dataclass(slots=True)
class PassMemory:
    """State between passes over all jobs.

    Attributes:
        absent: kinds that are optional and not served, and until when nothing of them is created.
        listening: time of the first pass.
    """

    absent: dict[Kind, datetime] = field(default_factory=dict)
    listening: datetime = EARLIEST
    _jobs: dict[Key, JobMemory] = field(default_factory=dict)
    _newest: datetime = EARLIEST

    def begin_pass(self, now: datetime) -> None:
        """Forget everything if the clock was set back: pauses would last until it catches up."""
        if now < self._newest or self._newest == EARLIEST:
            self.absent.clear()
            self._jobs.clear()
            self.listening = now
        self._newest = now

    def of(self, key: Key, uid: str, generation: int) -> JobMemory:
        """What is remembered of the job with this uid; nothing of an earlier job of its name.

        A changed spec ends all pauses.
        """
        memory = self._jobs.get(key)
        if memory is None or memory.uid != uid:
            memory = self._jobs[key] = JobMemory(uid, generation)
        if memory.generation != generation:
            memory.generation = generation
            memory.refused = RefusedRequests()
            memory.corrections = Corrections()
            memory.ensured = None
        return memory

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a job that does not exist any more."""
        self._jobs.pop(key, None)
