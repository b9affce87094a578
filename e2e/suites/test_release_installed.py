"""Releases on a whole cluster: chart and operator from a registry, installed, upgraded in mid-training, rolled back.

It is the check of `make release`. There nodes also pull the image for training, of 11 GB; here they have it already.
"""

from datetime import date
from pathlib import Path

import pytest

from e2e import helm as tool
from e2e import release
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.images.catalog import OPERATOR, ROOT
from e2e.release_check import Files, check
from e2e.release_tree import add_fragment, copy_tree
from e2e.system import images

pytestmark = [pytest.mark.bare, pytest.mark.timeout(2400), pytest.mark.about("e2e/release_check.py", "charts")]

OLD = "7.8.9"
NEW = "7.9.0"


def made(version: str, tree: Path, folder: Path) -> Files:
    """A release of a copy of the working tree; its image has the same files and the labels of the version."""
    add_fragment(tree)
    release.release(version, tree, folder, (), date(2026, 1, 2), tool.helm())
    release.export_images([OPERATOR], version, ROOT, folder)
    return Files(version, folder)


def test_a_release_is_pulled_by_nodes_upgraded_and_rolled_back_while_a_job_trains(tmp_path: Path) -> None:
    try:
        _, training = images(print)
    except ToolMissing as error:
        leave_out(error)
    tree = copy_tree(tmp_path / "tree")
    old, new = (made(version, tree, tmp_path / version) for version in (OLD, NEW))
    check(new, old, print, [training.image], training.name)
