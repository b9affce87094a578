"""A release in git: the commit that its images are built from, and its tag."""

import subprocess
from pathlib import Path

from e2e.cluster.processes import run


class NotReleasable(ValueError):
    """The working tree cannot be released as this version; the message says why."""


def tag_name(version: str) -> str:
    """The tag of a version: `v1.4.0`."""
    return f"v{version}"


def head(root: Path) -> str:
    """The commit of a checkout; empty where there is none."""
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return revision.stdout.strip() if revision.returncode == 0 else ""


def check_clean(root: Path, version: str) -> None:
    """
    Raises:
        NotReleasable: there is no git checkout, it has changes that are not committed, or the tag exists.
    """
    if not head(root):
        raise NotReleasable(f"{root} is no git checkout: a release is a commit and a tag")
    if changed := run(["git", "-C", str(root), "status", "--porcelain"]).splitlines():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise NotReleasable(f"not committed: {changed[0][3:]}{more}; a release is made of a commit")
    if run(["git", "-C", str(root), "tag", "--list", tag_name(version)]).strip():
        raise NotReleasable(f"the tag {tag_name(version)} exists already: choose the next version")


def commit(root: Path, version: str) -> None:
    """Commit the version and the changelog.

    Raises:
        CommandFailed: git refuses, for instance because it does not know the author.
    """
    run(["git", "-C", str(root), "commit", "--quiet", "--all", f"--message=Release {version}"])


def tag(root: Path, version: str) -> None:
    """Tag the commit of the release."""
    run(["git", "-C", str(root), "tag", "--annotate", tag_name(version), f"--message=Omni Operator {version}"])
