"""`drl render --cluster` prints `<case>/objects.yaml`, byte for byte.

`GOLDEN=rewrite python -m pytest tests/golden` rewrites the files; read the diff before you commit it.
"""

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.cli.main import app
from omni_operator.cli.options import read_settings

HERE = Path(__file__).parent
CASES = sorted(path.parent for path in HERE.glob("*/job.yaml"))
SETTINGS = HERE / "settings.yaml"


def render(case: Path) -> str:
    arguments = ["render", str(case / "job.yaml"), "--cluster", "--settings", str(SETTINGS)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_job_renders_to_its_golden_file(case: Path) -> None:
    rendered = render(case)
    golden = case / "objects.yaml"
    if os.environ.get("GOLDEN") == "rewrite":
        golden.write_text(rendered, encoding="utf-8")
    assert rendered == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rendered_objects_are_those_that_the_operator_applies(case: Path) -> None:
    applied = plan.render_objects(load_job(case / "job.yaml").job, 1, read_settings(SETTINGS))
    assert list(YAML(typ="safe", pure=True).load_all(render(case))) == applied


def test_there_is_a_golden_file_for_every_vendor() -> None:
    vendors = {load_job(case / "job.yaml").job.spec.trainer.accelerator.vendor for case in CASES}
    assert vendors == {"CPU", "NVIDIA", "Ascend", "Mock"}


def test_a_refused_job_is_reported_with_its_line(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("rayVersion: 2.60.0\n")
    arguments = [str(HERE / "cpu" / "job.yaml"), "--cluster", "--settings", str(settings)]
    result = CliRunner().invoke(app, ["render", *arguments])
    assert result.exit_code == 2
    assert "job.yaml:5: spec.runtime.image: must be given" in result.stderr
    checked = CliRunner().invoke(app, ["validate", *arguments])
    assert (checked.exit_code, checked.stderr) == (2, result.stderr)
    named = CliRunner().invoke(app, ["validate", *arguments, "--image", "i"])
    assert (named.exit_code, named.stdout.endswith("smallest is valid\n")) == (0, True)


@pytest.mark.parametrize("command", ["validate", "render"])
def test_lost_results_and_a_missing_vendor_are_notes(tmp_path: Path, command: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((HERE / "cpu" / "job.yaml").read_text().replace(", accelerator: {vendor: CPU}", ""))
    result = CliRunner().invoke(app, [command, str(job), "--cluster", "--image", "i"])
    assert result.exit_code == 0
    assert "spec.checkpoint.claimName is not given" in result.stderr
    assert "spec.trainer.accelerator.vendor is not given" in result.stderr
    quiet = CliRunner().invoke(
        app, [command, str(HERE / "nvidia-queue" / "job.yaml"), "--cluster", "--settings", str(SETTINGS)]
    )
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_invalid_settings_are_reported_with_their_line(tmp_path: Path) -> None:
    wrong = tmp_path / "settings.yaml"
    wrong.write_text("image: i\nreportURL: http://x\n")
    result = CliRunner().invoke(app, ["render", str(HERE / "cpu" / "job.yaml"), "--cluster", "--settings", str(wrong)])
    assert result.exit_code == 2
    assert "settings.yaml:2: reportURL: unknown field; did you mean 'reportUrl'?" in result.stderr
    missing = CliRunner().invoke(
        app, ["render", str(HERE / "cpu" / "job.yaml"), "--cluster", "--settings", str(tmp_path / "none.yaml")]
    )
    assert missing.exit_code == 2
