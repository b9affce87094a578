"""The images that there are."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a folder below `images/`.

    Attributes:
        repository: its name without the tag, which comes from its content.
        room: bytes of disk that a build takes at its peak, with the layers of an earlier one.
        kept: bytes of disk that stay taken.
        note: what to expect of a first build.
        first_room: bytes at the peak of a first build, where they are more.
    """

    folder: str
    repository: str
    room: int
    kept: int
    note: str
    first_room: int = 0

    def peak(self, *, first: bool) -> int:
        """Bytes of disk that a build takes at its peak."""
        return max(self.room, self.first_room) if first else self.room

    @property
    def dockerfile(self) -> str:
        """Path of its Dockerfile in a checkout."""
        return f"images/{self.folder}/Dockerfile"

    @property
    def ignore(self) -> str:
        """Path of the list of files that go in."""
        return f"{self.dockerfile}.dockerignore"


OPERATOR = Image("operator", "localhost/omni-operator", 2 * GB, 1 * GB, "2 minutes")
ROLLOUT_CPU = Image(
    "rollout-cpu", "localhost/omni-rollout-cpu", 24 * GB, 11 * GB, "10 to 20 minutes, 4 GB to download", 44 * GB
)
ROLLOUT = Image(
    "rollout", "localhost/omni-rollout", 24 * GB, 1 * GB, "a minute after rollout-cpu, whose layers it shares"
)
ROLLOUT_ASCEND = Image(
    "rollout-ascend", "localhost/omni-rollout-ascend", 40 * GB, 20 * GB, "10 to 20 minutes, on a CANN image"
)
# What the tests run; the others are for machines with such devices.
TESTED = (OPERATOR, ROLLOUT_CPU)
ALL = (*TESTED, ROLLOUT, ROLLOUT_ASCEND)
