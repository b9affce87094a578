"""Warnings of this package appear in the log of a worker."""

import subprocess
import sys

PROGRAM = """
import logging
from verl_omni.trainer import startup
startup.prepare_environment(has_accelerator=False)
import model_hosting_container_standards.logging_config  # as vLLM's server does
logging.getLogger("verl_omni.agent_loop").warning("the prompt is cut")
"""


def test_a_library_that_the_server_imports_does_not_silence_warnings() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    assert "the prompt is cut" in ended.stderr
