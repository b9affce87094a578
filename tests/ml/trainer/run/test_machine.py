"""The description of the machine and of the sources."""

import os
import subprocess
from pathlib import Path

from verl_omni.trainer.run.machine import available_cpus, describe_machine, killed_for_memory, source_commit


def test_this_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["cpu"]


def test_a_quota_of_the_container_limits_the_cpus(tmp_path: Path) -> None:
    all_cpus = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    assert available_cpus(quota) == all_cpus
    for text, expected in (("max 100000", all_cpus), ("100000 100000", 1), ("50000 100000", 1)):
        quota.write_text(f"{text}\n")
        assert available_cpus(quota) == expected, text
    quota.write_text(f"{(all_cpus + 1) * 100000} 100000\n")
    assert available_cpus(quota) == all_cpus


def test_processes_that_the_kernel_killed_for_memory_are_counted(tmp_path: Path) -> None:
    assert killed_for_memory(tmp_path) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert killed_for_memory(tmp_path) == 2, "cgroups v1"
    (tmp_path / "memory" / "memory.oom_control").unlink()
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n")
    assert killed_for_memory(tmp_path) == 3, "cgroups v2"


def test_accelerators_are_counted_by_model(tmp_path: Path) -> None:
    for name, model in (("0", "NVIDIA H200"), ("1", "NVIDIA H200"), ("2", "NVIDIA L4")):
        folder = tmp_path / "proc/driver/nvidia/gpus" / name
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC\n")
    (tmp_path / "dev").mkdir()
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / "dev" / name).touch()
    machine = describe_machine(tmp_path / "proc", tmp_path / "dev")
    assert machine["cpu"] == "AMD EPYC"
    assert machine["accelerators"] == {"NVIDIA H200": 2, "NVIDIA L4": 1, "Ascend NPU": 2}


def test_a_commit_says_whether_the_sources_were_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert source_commit(tmp_path) is None
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message=one")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert source_commit(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert source_commit(tmp_path) == f"{commit} with local changes"
