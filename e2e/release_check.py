"""Check of a release on a cluster: images and chart come from a registry, nodes pull, Helm installs, a job trains.

With the release before, it is also upgraded from that one and rolled back, each while a job trains.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import helm as tool
from e2e import registry as local
from e2e.cluster import addons, deadlines
from e2e.cluster.api import Api
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.errors import ClusterError, DeadlinePassed
from e2e.cluster.layered import NodeImage
from e2e.cluster.paths import cache
from e2e.cluster.processes import run
from e2e.cluster.provider import NodeSpec
from e2e.cluster.tools import Say
from e2e.jobs import Job, condition
from e2e.system import NAMESPACE, RELEASE, claim
from e2e.training_jobs import example

DIGESTS = "DIGESTS"
OPERATOR = "omni-operator"
TRAINING = "omni-rollout-cpu"
NODE = (NodeSpec("nvidia", {"nvidia.com/gpu": 8}),)
INSTANCE = 2  # next to the clusters of `make cluster` and of the tests
SPACE = "release"
EXAMPLE = "red-grpo-cluster"
# The first job must still train after an upgrade and a rollback.
LONG = 60
SHORT = 4
COPY_S = 3600.0
INSTALL_S = 900.0
# The first pod waits until a node has pulled and unpacked 11 GB.
FIRST_STEP = 1800.0
STEP = 300.0
WHOLE_RUN = 1800.0


class CheckFailed(ClusterError):
    """The files of a release do not do on a cluster what they should."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a release in a folder."""

    version: str
    folder: Path

    def digests(self) -> dict[str, tuple[str, str]]:
        """Digest and file of each image and chart, by the name that a registry gives it: `omni-operator:1.4.0`."""
        lines = (self.folder / DIGESTS).read_text(encoding="utf-8").splitlines()
        return {name: (digest, file) for digest, name, file in (line.split() for line in lines)}


def publish(files: Files, address: str, skopeo: Path) -> None:
    """Copy images and chart to a registry without TLS, by the command of docs/contribute/testing.md."""
    for name, (_, file) in files.digests().items():
        copy = [str(skopeo), "copy", "--quiet", "--dest-tls-verify=false", f"oci-archive:{files.folder / file}"]
        run([*copy, f"docker://{address}/{name}"], deadline=COPY_S)


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster and a registry.

    Attributes:
        training: job image that is already on the node; None: the release's image, pulled from the registry.
    """

    cluster: BareCluster
    kubeconfig: Path
    helm: Path
    address: str
    training: str | None

    def install(self, files: Files) -> None:
        """Install the release, or upgrade to it; its operator runs from the image of its files.

        Raises:
            CheckFailed: it runs from another one.
        """
        self._run_helm(
            "upgrade",
            "--install",
            RELEASE,
            f"oci://{self.address}/charts/omni-operator",
            f"--version={files.version}",
            "--plain-http",
            "--create-namespace",
            f"--set=image.repository={self.address}/{OPERATOR}",
            f"--set=jobs.image={self.training or self._name(TRAINING, files)}",
        )
        self.check_operator(files)

    def roll_back(self, revision: int) -> None:
        """Return to an earlier revision of the installation."""
        self._run_helm("rollback", RELEASE, str(revision))

    def check_operator(self, files: Files) -> None:
        """
        Raises:
            CheckFailed: the operator does not run from the image of these files.
        """
        self._check_pulled(NAMESPACE, f"app.kubernetes.io/instance={RELEASE}", OPERATOR, files)

    def check_job(self, job: Job, files: Files) -> None:
        """
        Raises:
            CheckFailed: a pod of the job does not run from the image of these files.
        """
        if self.training is None:
            self._check_pulled(job.namespace, f"diffusionrl.io/job={job.name}", TRAINING, files)

    def _check_pulled(self, space: str, selector: str, image: str, files: Files) -> None:
        digest, _ = files.digests()[f"{image}:{files.version}"]
        ran: set[str] = set()

        def only_this() -> bool:
            """An upgrade is over before the pod of the older version ends."""
            with self.cluster.plane().api("release-check") as api:
                pods = api.get(f"/api/v1/namespaces/{space}/pods", labelSelector=selector)["items"]
            ran.clear()
            ran.update(image_id for pod in pods for image_id in image_ids(pod))
            return ran == {f"{self.address}/{image}@{digest}"}

        try:
            deadlines.wait_until("pods of this image alone", deadlines.POD_RUNNING, only_this)
        except DeadlinePassed as error:
            raise CheckFailed(
                f"the pods {selector} run {', '.join(sorted(ran)) or 'nothing'}, not {image}:{files.version} ({digest})"
            ) from error

    def _name(self, image: str, files: Files) -> str:
        return f"{self.address}/{image}:{files.version}"

    def _run_helm(self, *arguments: str) -> None:
        waits = ("--wait", f"--timeout={INSTALL_S:g}s", f"--namespace={NAMESPACE}")
        tool.on_cluster(self.helm, self.kubeconfig, [*arguments, *waits], INSTALL_S + deadlines.COMMAND)


def image_ids(pod: dict[str, Any]) -> set[str]:
    """The images that the containers of a pod run from, by registry, name and digest. PURE."""
    status = pod["status"]
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return {container["imageID"] for container in containers}


@contextmanager
def stage(
    releases: Sequence[Files], say: Say, images: Sequence[NodeImage] = (), training: str | None = None
) -> Iterator[Stage]:
    """A new cluster of one node with these releases in a registry; both go at the end of the block.

    Args:
        images: what the node has from the start.
        training: see `Stage`.
    """
    with tempfile.TemporaryDirectory(dir=cache(), prefix="release-") as kept:
        folder = Path(kept)
        # A separate image store has no layers of images built on this machine, so every layer is pulled.
        cluster = BareCluster(INSTANCE, say, images=folder / "images")
        try:
            kubeconfig = cluster.create(NODE, images)
            with local.registry(folder, cluster.network.gateway) as address:
                for files in releases:
                    say(f"copying {files.version} to the registry at {address}")
                    publish(files, address, local.skopeo(say))
                cluster.trust_registry(address)
                cluster.kubectl("apply", "--server-side", "--filename=-", text=addons.namespace(SPACE))
                claim(cluster, SPACE, "runs")
                yield Stage(cluster, kubeconfig, tool.helm(say), address, training)
        finally:
            cluster.delete()


def check(
    new: Files, old: Files | None, say: Say, images: Sequence[NodeImage] = (), training: str | None = None
) -> None:
    """Check a release as this module says.

    Raises:
        ToolMissing: this machine cannot run a cluster.
        CheckFailed: the release fails the check.
        ClusterError: a step failed.
    """
    with (
        stage([files for files in (old, new) if files], say, images, training) as staged,
        staged.cluster.plane().api("release-check") as api,
    ):
        try:
            if old is None:
                say("there is no release before this one: upgrade and rollback are not tried")
            else:
                check_upgrade(staged, api, old, new, say)
            check_training(staged, api, new, say)
        except AssertionError as error:
            raise CheckFailed(str(error)) from error


def check_upgrade(place: Stage, api: Api, old: Files, new: Files, say: Say) -> None:
    """A job that starts under the old release trains on during an upgrade and a rollback, and succeeds.

    Raises:
        AssertionError: it does not.
    """
    say(f"installing {old.version}")
    place.install(old)
    say("a job starts; the node pulls the image for training")
    job, step = start_job(place, api, "first", LONG, old)
    before = api.get(job.ray("rayjobs", job.attempt(1)))["metadata"]
    say(f"upgrading to {new.version} at step {step}")
    place.install(new)
    step = await_step(job, reported(job) + 1, STEP)
    say(f"rolling back to {old.version} at step {step}")
    place.roll_back(1)
    place.check_operator(old)
    step = await_step(job, reported(job) + 1, STEP)
    say(f"the job is at step {step} and goes on to its end")
    job.await_condition("Succeeded", "True", within=WHOLE_RUN)
    after = api.get(job.ray("rayjobs", job.attempt(1)))["metadata"]
    identity = (job.status()["attempts"], after["uid"], after["generation"])
    assert identity == (1, before["uid"], before["generation"]), f"the job was started again: {job.status()}"


def check_training(place: Stage, api: Api, new: Files, say: Say) -> None:
    """The release is installed, and a job trains with it to the end.

    Raises:
        AssertionError: it does not.
    """
    say(f"installing {new.version}, and a job trains with it")
    place.install(new)
    job, _ = start_job(place, api, "second", SHORT, new)
    job.await_condition("Succeeded", "True", within=WHOLE_RUN)
    status = job.status()
    assert (status["attempts"], status["progress"]["globalStep"]) == (1, SHORT), status
    say(f"the job has taken {SHORT} steps and succeeded")


def start_job(place: Stage, api: Api, name: str, steps: int, files: Files) -> tuple[Job, int]:
    """A job with the image of these files, and the step in its status, once it has taken one.

    Raises:
        AssertionError: it does not train.
        CheckFailed: its pods run from another image.
    """
    job = Job(api, SPACE, name)
    job.create(example(EXAMPLE, trainer__totalSteps=steps, trainer__evalEverySteps=steps))
    step = await_step(job, 1, FIRST_STEP)
    place.check_job(job, files)
    return job, step


def reported(job: Job) -> int:
    """The last step in the status of a job that has not ended.

    Raises:
        AssertionError: it has ended.
    """
    status = job.status()
    assert condition(status, "Succeeded").get("status") == "Unknown", f"the job has ended too early: {status}"
    return status.get("progress", {}).get("globalStep") or 0


def await_step(job: Job, step: int, within: float) -> int:
    """The step in the status, once the job has taken as many."""
    status = job.await_status(
        f"step {step}", lambda found: (found.get("progress", {}).get("globalStep") or 0) >= step, within
    )
    assert not status.get("failures"), status["failures"]
    reached: int = status["progress"]["globalStep"]
    return reached
