"""A release: the version is the same everywhere, the changelog gets its section, and every file has its checksum."""

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from importlib.metadata import version as installed_version
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from ruamel.yaml import YAML

from e2e import helm as tool
from e2e import registry as local
from e2e import release, release_check, release_commit, sbom
from e2e.cluster import deadlines
from e2e.cluster.errors import CommandFailed, ToolMissing
from e2e.cluster.processes import run
from e2e.conftest import leave_out
from e2e.release_tree import copy_tree

ROOT = release.ROOT
DAY = date(2026, 1, 2)
MANIFEST = {"Accept": "application/vnd.oci.image.manifest.v1+json"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that a release reads and changes."""
    return copy_tree(tmp_path / "tree")


@pytest.fixture
def checkout(tree: Path) -> Path:
    """The copy as a git checkout with one commit."""
    git(tree, "init", "--quiet")
    git(tree, "config", "user.name", "A maintainer")
    git(tree, "config", "user.email", "maintainer@example.com")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=Something new")
    return tree


def git(tree: Path, *arguments: str) -> str:
    return run(["git", "-C", str(tree), *arguments]).strip()


def test_the_version_is_the_same_everywhere() -> None:
    versions = release.read_versions(ROOT)
    assert len(versions) == 3
    assert set(versions.values()) == {installed_version("omni-operator")}


def test_no_other_committed_file_names_the_version_of_the_chart_or_the_package() -> None:
    """A place that `set_version` does not know would keep the old version."""
    version = release.read_versions(ROOT)["pyproject.toml: version"]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the committed files are unknown")
    names = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    shipped = [name for name in names if name.parts[0] in ("charts", "images", "crds", "operator", "verl_omni", "docs")]
    assert len(shipped) > 200
    texts = {name.as_posix(): (ROOT / name).read_bytes() for name in shipped if (ROOT / name).is_file()}
    named = {name for name, text in texts.items() if f"omni-operator:{version}".encode() in text}
    named |= {name for name, text in texts.items() if f"omni-operator-{version}".encode() in text}
    assert named == set()


def test_a_release_sets_the_version_and_writes_the_changelog(tree: Path) -> None:
    release.set_version(tree, "7.8.9")
    assert set(release.read_versions(tree).values()) == {"7.8.9"}
    changed = [name for name in release.PLACES if (tree / name).read_text() != (ROOT / name).read_text()]
    assert changed == list(release.PLACES)
    for name in changed:
        lines = zip((tree / name).read_text().splitlines(), (ROOT / name).read_text().splitlines(), strict=True)
        assert all("7.8.9" in new for new, old in lines if new != old), name
    release.write_changelog(tree, "7.8.9", DAY)
    assert "# Omni Operator 7.8.9 (2026-01-02)\n\n## Added\n\n- Something new.\n" in (tree / "CHANGELOG.md").read_text()
    assert list((tree / "changelog.d").glob("*.md")) == []
    with pytest.raises(release.NotReleasable, match=r"has 7\.8\.9 already"):
        release.check_releasable(tree, "7.8.9")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.2", "is not a version"),
        ("v1.2.3", "is not a version"),
        ("1.2.3rc1", "is not a version"),
        ("1.02.3", "is not a version"),
        ("0.0.1", "is older than"),
    ],
)
def test_a_version_that_cannot_be_released_is_refused(version: str, words: str) -> None:
    with pytest.raises(release.NotReleasable, match=words):
        release.check_releasable(ROOT, version)


def test_a_release_without_changes_is_refused(tree: Path) -> None:
    shutil.rmtree(tree / "changelog.d")
    with pytest.raises(release.NotReleasable, match="no fragment"):
        release.check_releasable(tree, "7.8.9")


def test_every_fragment_is_in_a_section_of_the_changelog() -> None:
    drafted = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "7.8.9", "--date", "2026-01-02"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fragments = sorted((ROOT / "changelog.d").glob("*.md"))
    words = " ".join(drafted.split())
    missing = [path.name for path in fragments if " ".join(path.read_text().split())[:60] not in words]
    assert missing == []


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    release.write_checksums(tmp_path)
    assert (tmp_path / release.CHECKSUMS).read_text() == "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in (("a.txt", "one"), ("b.txt", "two"))
    )
    release.write_checksums(tmp_path)
    checked = subprocess.run(
        ["sha256sum", "--check", release.CHECKSUMS], cwd=tmp_path, capture_output=True, check=False
    )
    assert checked.returncode == 0


@pytest.mark.slow
def test_the_same_sources_give_the_same_wheel(tree: Path, tmp_path: Path) -> None:
    wheels = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        release.build_wheel(tree, tmp_path / name)
        (wheel,) = (tmp_path / name).iterdir()
        wheels.append((wheel.name, wheel.read_bytes()))
        (tree / "verl_omni" / "__init__.py").touch()
    assert wheels[0] == wheels[1]


@pytest.mark.slow  # uv resolves the sets
@pytest.mark.parametrize("name", release.SETS)
def test_a_bill_of_materials_lists_the_locked_packages_with_their_hashes(name: str, tmp_path: Path) -> None:
    locked = (ROOT / "requirements" / release.SETS[name]).read_text()
    target = tmp_path / "bill.json"
    sbom.write_bill("omni-operator", "7.8.9", locked, target)
    bill = json.loads(target.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == (
        "omni-operator",
        "7.8.9",
    )
    packages = {f"{component['name']}=={component['version']}": component for component in bill["components"]}
    assert {*packages} == {line.split()[0] for line in locked.splitlines() if "==" in line}
    hashes = set(locked.replace("--hash=sha256:", " ").split())
    for package in packages.values():
        files = package["externalReferences"]
        assert files
        assert {digest["content"] for file in files for digest in file["hashes"]} <= hashes
    assert any(dependency.get("dependsOn") for dependency in bill["dependencies"])


@pytest.mark.slow
def test_a_release_is_a_commit_and_a_tag(checkout: Path) -> None:
    release_commit.check_clean(checkout, "7.8.9")
    release.set_version(checkout, "7.8.9")
    release.write_changelog(checkout, "7.8.9", DAY)
    release_commit.commit(checkout, "7.8.9")
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "log", "--format=%s") == "Release 7.8.9\nSomething new"
    changed = {"CHANGELOG.md", "changelog.d/something.added.md", *release.PLACES}
    assert {*git(checkout, "show", "--name-only", "--format=").splitlines()} == changed
    release_commit.tag(checkout, "7.8.9")
    assert git(checkout, "rev-parse", "v7.8.9^{commit}") == release_commit.head(checkout)
    with pytest.raises(release.NotReleasable, match=r"the tag v7\.8\.9 exists"):
        release_commit.check_clean(checkout, "7.8.9")


def test_what_is_not_committed_is_not_released(checkout: Path, tmp_path: Path) -> None:
    (checkout / "new.txt").write_text("")
    with pytest.raises(release.NotReleasable, match=r"not committed: new\.txt; a release"):
        release_commit.check_clean(checkout, "7.8.9")
    with pytest.raises(release.NotReleasable, match="is no git checkout"):
        release_commit.check_clean(tmp_path, "7.8.9")


@pytest.mark.cluster
def test_the_command_commits_and_says_what_it_did_not_check(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["7.8.9", f"--root={checkout}", f"--out={tmp_path / 'dist'}"]
    try:
        assert release.main([*arguments, "--images"]) == 0
    except ToolMissing as error:
        leave_out(error)
    assert "not checked and not tagged, which needs the images operator and rollout-cpu" in capsys.readouterr().out
    assert (git(checkout, "log", "-1", "--format=%s"), git(checkout, "tag")) == ("Release 7.8.9", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "text"), [(CommandFailed("the disk is full"), "the disk is full"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_release_that_fails_after_its_commit_says_how_to_begin_again(
    failure: BaseException,
    text: str,
    checkout: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise failure

    before = release_commit.head(checkout)
    monkeypatch.setattr(release, "build_wheel", fails)
    monkeypatch.setattr(release, "helm", lambda: Path("helm"))
    assert release.main(["7.8.9", f"--root={checkout}", f"--out={tmp_path}", "--images"]) == 1
    message = capsys.readouterr().err
    assert message == f"{text}\nto begin again: git reset --hard {before[:12]} && rm -r {tmp_path / '7.8.9'}\n"


def test_the_release_before_is_the_newest_earlier_one_that_can_be_checked(tmp_path: Path) -> None:
    for version, images in (("1.9.0", 2), ("1.10.0", 2), ("1.11.0", 1), ("2.0.0", 2)):
        (tmp_path / version).mkdir()
        names = [f"{name}:{version}" for name in ("omni-operator", "omni-rollout-cpu")[:images]]
        (tmp_path / version / release.DIGESTS).write_text("".join(f"sha256:1 {name} a.tar\n" for name in names))
    (tmp_path / "notes").mkdir()
    assert release.release_before("2.0.0", tmp_path) == release_check.Files("1.10.0", tmp_path / "1.10.0")
    assert release.release_before("1.9.0", tmp_path) is None


@pytest.mark.cluster
@pytest.mark.parametrize("ran", ["sha256:other", None])
def test_a_pod_of_another_image_than_the_releases_fails_the_check(
    ran: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry has another image under the name, or no pod runs."""
    monkeypatch.setattr(deadlines, "POD_RUNNING", 0.0)
    (tmp_path / release_check.DIGESTS).write_text("sha256:right omni-operator:7.8.9 omni-operator-7.8.9.tar\n")
    files = release_check.Files("7.8.9", tmp_path)

    def stage_with(digest: str | None) -> release_check.Stage:
        status = {"containerStatuses": [{"imageID": f"registry:5000/omni-operator@{digest}"}]}
        pods = {"items": [{"status": status}] if digest else []}
        api = SimpleNamespace(get=lambda *_, **__: pods)
        cluster = SimpleNamespace(plane=lambda: SimpleNamespace(api=lambda _: contextlib.nullcontext(api)))
        return release_check.Stage(cluster, tmp_path, tmp_path, "registry:5000", None)

    stage_with("sha256:right").check_operator(files)
    with pytest.raises(release_check.CheckFailed, match=r"not omni-operator:7\.8\.9 \(sha256:right\)"):
        stage_with(ran).check_operator(files)


@pytest.mark.slow
def test_a_release_without_images_installs(tree: Path, tmp_path: Path) -> None:
    try:
        program = tool.helm()
        skopeo = local.skopeo()
    except ToolMissing as error:
        leave_out(error)
    out = tmp_path / "out" / "7.8.9"
    release.release("7.8.9", tree, out, (), DAY, program)
    wheel = out / "omni_operator-7.8.9-py3-none-any.whl"
    chart = out / "omni-operator-7.8.9.tgz"
    assert {path.name for path in out.iterdir()} == {
        wheel.name,
        chart.name,
        release.CHECKSUMS,
        release.DIGESTS,
        "omni-operator-chart-7.8.9.tar",
        "omni-operator-7.8.9.cdx.json",
        "omni-rollout-7.8.9.cdx.json",
        *(path.name for path in (ROOT / "crds").glob("*.yaml")),
    }
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        assert {"omni_operator/main.py", "verl_omni/trainer/main_diffusion.py"} <= set(names)
        assert "omni_operator/api/spec/pod_template_schema.json" in names
        assert not [name for name in names if "tests" in name.split("/")]
    with tarfile.open(chart) as packed:
        described = packed.extractfile("omni-operator/Chart.yaml")
        metadata = YAML(typ="safe").load(described)
    assert (metadata["version"], metadata["appVersion"]) == ("7.8.9", "7.8.9")
    with local.registry(tmp_path) as address:
        files = release_check.Files("7.8.9", out)
        release_check.publish(files, address, skopeo)
        manifest = httpx2.get(
            f"http://{address}/v2/charts/omni-operator/manifests/7.8.9", headers=MANIFEST, trust_env=False
        )
        assert manifest.headers["Docker-Content-Digest"] == files.digests()["charts/omni-operator:7.8.9"][0]
        pulled = [str(program), "template", "omni", f"oci://{address}/charts/omni-operator", "--plain-http"]
        text = run(
            [*pulled, "--version=7.8.9", f"--kube-version={tool.KUBERNETES}", f"--set=image.repository={address}/o"]
        )
    images = {
        container["image"]
        for body in YAML(typ="safe").load_all(text)
        if body and body["kind"] == "Deployment"
        for container in body["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"{address}/o:7.8.9"}
    with pytest.raises(release.NotReleasable, match="already"):
        release.release("7.8.9", tree, out, (), DAY, program)


def test_an_existing_folder_is_refused_before_anything_changes(tree: Path, tmp_path: Path) -> None:
    before = (tree / "pyproject.toml").read_text()
    with pytest.raises(release.NotReleasable, match="exists: remove it"):
        release.release("7.8.9", tree, tmp_path, (), DAY, Path("helm"))
    assert (tree / "pyproject.toml").read_text() == before
    assert list((tree / "changelog.d").glob("*.md"))
