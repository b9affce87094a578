"""Dockerfiles of every image keep the same rules."""

import re
import shlex
from pathlib import Path

import pytest

from e2e.images.catalog import ALL, ROOT, Image
from e2e.images.recipe import default_base

Instruction = tuple[str, str]
IMAGES = pytest.mark.parametrize("image", ALL, ids=lambda image: image.folder)


def instructions(path: Path) -> list[Instruction]:
    """Names and arguments, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def of(image: Image, name: str) -> list[str]:
    return [argument for instruction, argument in instructions(ROOT / image.dockerfile) if instruction == name]


def last_stage(image: Image) -> list[Instruction]:
    steps = instructions(ROOT / image.dockerfile)
    return steps[max(index for index, (name, _) in enumerate(steps) if name == "FROM") :]


@IMAGES
def test_the_base_is_an_argument_with_a_short_name(image: Image) -> None:
    base = default_base((ROOT / image.dockerfile).read_text())
    assert re.fullmatch(r"([a-z0-9-]+/)?[a-z0-9-]+:[A-Za-z0-9._-]+", base)  # no registry, and never `latest`
    assert not base.endswith(":latest")
    assert {argument.split()[0] for argument in of(image, "FROM")} == {"${BASE}"}


@IMAGES
def test_it_runs_as_a_numeric_user_other_than_root(image: Image) -> None:
    user = [argument for name, argument in last_stage(image) if name == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    # Later instructions would not run as root.
    names = [name for name, _ in last_stage(image)]
    assert set(names[len(names) - names[::-1].index("USER") :]) <= {"EXPOSE", "ENTRYPOINT", "CMD"}


@IMAGES
def test_python_does_not_import_from_the_working_directory(image: Image) -> None:
    variables = " ".join(argument for name, argument in last_stage(image) if name == "ENV")
    assert "PYTHONSAFEPATH=1" in shlex.split(variables)


@IMAGES
def test_no_image_gives_devices_to_containers_that_request_none(image: Image) -> None:
    """Heads and init containers have the image too, and NVIDIA's runtime shows them what its variable names."""
    variables = " ".join(argument for name, argument in last_stage(image) if name == "ENV")
    assert "VISIBLE_DEVICES" not in variables


@IMAGES
def test_packages_are_installed_by_hash(image: Image) -> None:
    for command in of(image, "RUN"):
        for part in command.split("&&"):
            if "uv pip sync" in part or "--requirement" in part:
                assert "--require-hashes" in part
            if "pip install" in part and "uv.txt" not in part:
                # A locked set is complete, and has transformers that verl does not allow.
                assert "--no-deps" in part


@IMAGES
def test_debian_packages_leave_no_package_lists(image: Image) -> None:
    for command in of(image, "RUN"):
        if "apt-get" in command:
            assert "--no-install-recommends" in command
            assert "rm -rf /var/lib/apt/lists/*" in command


@IMAGES
def test_copied_files_are_those_of_the_ignore_file(image: Image) -> None:
    copied = {
        source for argument in of(image, "COPY") if "--from" not in argument for source in shlex.split(argument)[:-1]
    }
    allowed = {line[1:] for line in (ROOT / image.ignore).read_text().splitlines() if line.startswith("!")}
    assert copied == allowed


@IMAGES
def test_dockerfiles_use_only_syntax_that_buildah_supports(image: Image) -> None:
    text = (ROOT / image.dockerfile).read_text()
    assert not re.search(r"<<-?['\"]?[A-Z]", text)
    assert "--link" not in text
    assert not of(image, "SHELL")
    assert not of(image, "ADD")


def test_the_operator_has_neither_training_stack_nor_compiler() -> None:
    operator = ALL[0]
    locked = (ROOT / "requirements" / "operator.txt").read_text()
    assert re.search(r"^kopf==", locked, re.MULTILINE)
    assert not re.search(r"^(torch|ray|verl|vllm|numpy)==", locked, re.MULTILINE)
    commands = " ".join(of(operator, "RUN"))
    assert "apt-get" not in commands
    # rollout.txt only pins what builds the package.
    assert "--requirement requirements/rollout.txt" not in commands


@pytest.mark.parametrize("image", ALL[2:], ids=lambda image: image.folder)
def test_training_images_share_the_layer_of_the_environment(image: Image) -> None:
    """On one base: the Dockerfiles are identical up to that layer, and the one after it, which mends OpenCV.

    Dockerfiles include no others, so this is what keeps the copies the same.
    """
    steps, others = (
        [instruction for instruction in instructions(ROOT / built.dockerfile) if instruction[0] != "ARG"]
        for built in (ALL[1], image)
    )
    environment = next(index for index, (_, argument) in enumerate(steps) if "import cv2" in argument)
    assert "uv pip install" in steps[environment - 1][1]
    assert steps[: environment + 1] == others[: environment + 1]
    code = next(index for index, (_, argument) in enumerate(steps) if "verl_omni" in argument)
    assert environment < code
