from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from suite import coverage, entered

SOURCE = '''"""A module."""
from __future__ import annotations

import os, pickle
from typing import Protocol


def used(value: int) -> int:
    """Documented."""
    return value + 1


def unused():
    global never
    never = 1


class Shape(Protocol):
    def area(self) -> float: ...

    def todo(self):
        raise NotImplementedError


class Square:
    def area(self):
        return [number for number in self.sides()][0]

    def sides(self):
        def inner():
            return 4
        yield inner()

    async def later(self):
        return 1


def bytes_again():
    assert len(pickle.loads(pickle.dumps(_entered_))) == len(_entered_)


def fork():
    if os.fork() == 0:
        assert Square().area() == 4
        os._exit(0)
    os.wait()
'''
NAMES = ["used", "unused", "Square.area", "Square.sides", "Square.later", "bytes_again", "fork"]


def test_functions_with_something_to_do_are_named_in_the_order_of_the_source() -> None:
    assert [name for name, _ in entered.functions(entered.ast.parse(SOURCE))] == NAMES


def test_functions_entered_in_a_process_that_is_killed_and_in_its_fork_are_counted(tmp_path: Path) -> None:
    package = tmp_path / "source" / "shapes"
    marks = tmp_path / "marks"
    package.mkdir(parents=True)
    marks.mkdir()
    (package / "__init__.py").write_text("")
    (package / "square.py").write_text(SOURCE)
    program = f"""
from suite import entered
entered.follow({str(marks)!r}, ["shapes"], {str(tmp_path)!r})
import os, signal
from shapes.square import bytes_again, fork, used
bytes_again()
fork()
assert used(1) == 2
os.kill(os.getpid(), signal.SIGKILL)
"""
    places = os.pathsep.join([str(Path(entered.__file__).parents[1]), str(package.parent)])
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    found = (marks / "shapes.square").read_bytes()
    assert [name for name, mark in zip(NAMES, found, strict=True) if not mark] == ["unused", "Square.later"]
    assert not (package / "__pycache__").exists()


def test_untouched_code_is_listed_by_module_and_function() -> None:
    names = {"a": ["used", "C.unused"], "b": ["f"], "c": []}
    found = coverage.untouched(names, {"a": b"\x01\x00", "b": None, "c": None})
    assert "1 of 3 functions" in found
    assert found.splitlines()[2:] == ["- `a`: `C.unused`", "- `b`: not imported"]
