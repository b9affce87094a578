"""The tag of an image is a hash of its inputs, and an image is built once."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster.errors import BuildFailed, ToolMissing
from e2e.images.build import build, check_room
from e2e.images.catalog import ALL, GB, ROOT, Image
from e2e.images.recipe import Recipe, default_base, inputs, recipe, stage
from e2e.images.storage import layers

SMALL = Image("small", "localhost/small", 0, 0, "a moment")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with an image of two files, and one ignored file."""
    root = tmp_path / "tree"
    files = {
        "images/small/Dockerfile": "ARG BASE=python:3.12-slim\nFROM ${BASE}\nCOPY code /code\n",
        "images/small/Dockerfile.dockerignore": "# why\n*\n!code\n!one.txt\n**/__pycache__\n",
        "code/a.py": "a",
        "code/__pycache__/a.pyc": "x",
        "one.txt": "1",
        "two.txt": "2",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class RecordingBuilder:
    """A builder that records its calls."""

    def __init__(self, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.staged: list[str] = []
        self.fails = fails
        self.earlier: tuple[str, ...] = ()

    def base(self, dockerfile: str, say: object) -> str:
        return default_base(dockerfile)

    def build(self, recipe: Recipe, context: Path, say: object) -> None:
        self.calls.append(f"build {recipe.name} on {recipe.base}")
        self.staged = sorted(path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file())
        if self.fails:
            raise BuildFailed("no")

    def find(self, recipe: Recipe, folder: Path) -> Path | None:
        archive = recipe.archive(folder)
        return archive if archive.exists() else None

    def deliver(self, recipe: Recipe, folder: Path) -> Path:
        self.calls.append("deliver")
        recipe.archive(folder).write_text(recipe.name)
        return recipe.archive(folder)

    def export(self, name: str, archive: Path) -> None:
        raise AssertionError("tests export nothing")

    def clean(self) -> None:
        self.calls.append("clean")

    def names(self, repository: str) -> set[str]:
        return {name for name in self.earlier if name.startswith(f"{repository}:")}

    def forget(self, repository: str, kept: str) -> None:
        self.calls.append(f"forget all of {repository} but {kept}")


def made(tree: Path, tmp_path: Path, builder: RecordingBuilder, base: str | None = None) -> str:
    return build(SMALL, builder, tmp_path / "kept", lambda _: None, base, tree).name


def test_only_listed_files_are_copied(tree: Path) -> None:
    lines = (tree / SMALL.ignore).read_text().splitlines()
    assert inputs(tree, lines) == ["code/a.py", "one.txt"]
    with pytest.raises(BuildFailed, match="gone goes into the image and is not there"):
        inputs(tree, ["*", "!gone"])


def test_an_image_is_built_once(tree: Path, tmp_path: Path) -> None:
    builder = RecordingBuilder()
    name = made(tree, tmp_path, builder)
    assert builder.calls == [
        "clean",
        f"build {name} on python:3.12-slim",
        f"forget all of localhost/small but {name}",
        "deliver",
    ]
    assert builder.staged == ["code/a.py", "images/small/Dockerfile", "one.txt"]
    again = RecordingBuilder()
    assert made(tree, tmp_path, again) == name
    assert again.calls == []


@pytest.mark.parametrize(
    ("path", "text", "same"),
    [
        ("code/a.py", "b", False),
        ("code/b.py", "new", False),
        ("images/small/Dockerfile", "ARG BASE=python:3.12-slim\nFROM ${BASE}\n", False),
        ("two.txt", "3", True),
        ("code/__pycache__/a.pyc", "y", True),
        ("code/a.py", "a", True),  # written again with the same content
    ],
)
def test_another_content_is_another_image(tree: Path, tmp_path: Path, path: str, text: str, same: bool) -> None:
    before = made(tree, tmp_path, RecordingBuilder())
    (tree / path).write_text(text)
    after = made(tree, tmp_path, RecordingBuilder())
    assert (after == before) is same
    # The archive of the earlier content is gone.
    assert [file.read_text() for file in (tmp_path / "kept").glob("*.tar")] == [after]


def test_another_base_or_mode_is_another_image(tree: Path, tmp_path: Path) -> None:
    plain = made(tree, tmp_path, RecordingBuilder())
    assert made(tree, tmp_path, RecordingBuilder(), "other:1") != plain
    (tree / "code/a.py").chmod(0o755)
    assert made(tree, tmp_path, RecordingBuilder()) != plain


def test_a_build_that_fails_leaves_no_archive(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildFailed):
        made(tree, tmp_path, RecordingBuilder(fails=True))
    assert list((tmp_path / "kept").iterdir()) == []


@given(free=st.integers(0, 100), room=st.integers(0, 100))
def test_a_full_disk_is_reported_before_the_build(free: int, room: int) -> None:
    image = Image("big", "localhost/big", room * GB, 0, "")
    if free >= room:
        check_room(image, Path("kept"), free * GB, image.peak(first=False))
        return
    with pytest.raises(ToolMissing, match=f"takes up to {room} GB at its peak, and kept has {free} GB free"):
        check_room(image, Path("kept"), free * GB, image.peak(first=False))


def test_staged_files_have_no_time(tree: Path, tmp_path: Path) -> None:
    early = tmp_path / "one"
    late = tmp_path / "two"
    for folder in (early, late):
        folder.mkdir()
        stage(SMALL, folder, tree)
        (tree / "code/a.py").touch()
    assert {path.stat().st_mtime for path in early.rglob("*")} == {0.0}
    assert recipe(SMALL, "b", early) == recipe(SMALL, "b", late)


def test_the_environment_layer_does_not_depend_on_comments_of_the_lock(tmp_path: Path) -> None:
    """The first line of a lock changes with every line of pyproject.toml, and installing it takes ten minutes."""
    for image in ALL:
        folder = tmp_path / image.folder
        folder.mkdir()
        stage(image, folder)
        for staged in (folder / "requirements").glob("*.txt"):
            kept = [line for line in (ROOT / "requirements" / staged.name).read_text().splitlines() if line[0] != "#"]
            assert kept and staged.read_text().splitlines() == kept


def test_every_image_has_its_files_in_this_checkout(tmp_path: Path) -> None:
    for image in ALL:
        folder = tmp_path / image.folder
        folder.mkdir()
        stage(image, folder)
        assert (folder / image.dockerfile).exists()


def test_layers_are_found_in_the_storage_from_the_lowest_up(tmp_path: Path) -> None:
    for folder, file, content in (
        (
            "overlay-images",
            "images.json",
            [{"id": "i", "names": ["localhost/a:1"], "layer": "top"}, {"id": "j", "layer": "x"}],
        ),
        (
            "overlay-layers",
            "layers.json",
            [{"id": "top", "parent": "middle"}, {"id": "low"}, {"id": "middle", "parent": "low"}],
        ),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(json.dumps(content))
    assert layers(tmp_path, "localhost/a:1") == tuple(
        tmp_path / "overlay" / name / "diff" for name in ("low", "middle", "top")
    )
    with pytest.raises(BuildFailed, match=r"the layers of localhost/b:1 are not found in buildah's storage"):
        layers(tmp_path, "localhost/b:1")
