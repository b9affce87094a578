"""What importing the engine does on a machine without an accelerator."""

import os
import subprocess
import sys

import pytest

from verl_omni.trainer.startup import accelerator_present

CODE = """
import sys
started = []
sys.addaudithook(lambda event, found: started.append(found[1]) if event == "subprocess.Popen" else None)
import vllm_omni
assert "humming" in sys.modules, "it is not imported any more: remove the variable that its import reads"
print("started:", [command for command in started if "humming" in str(command)])
"""


@pytest.mark.slow
@pytest.mark.skipif(accelerator_present(), reason="with an accelerator, the engine uses these programs")
def test_no_programs_of_cuda_are_built() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "HUMMING_DISABLE_PARALLEL_BUILD"}
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        env={**variables, "VERL_PLATFORM": "cpu"},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "started: []"
