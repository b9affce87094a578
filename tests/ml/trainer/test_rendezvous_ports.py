"""The port at which training workers meet."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from verl.single_controller import ray as single_controller
from verl.single_controller.ray import base

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.trainer.settings import scorer_devices
from verl_omni.utils import rendezvous_ports


class Reached(Exception):
    """The worker group has been asked for."""


def test_workers_meet_at_a_port_that_the_kernel_and_ray_give_to_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def group(**arguments: Any) -> None:
        given.update(arguments)
        raise Reached

    monkeypatch.setattr(startup, "wait_for_nodes", lambda *_: None)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(scorer_devices, "shortage", lambda *_: None)
    monkeypatch.setattr(single_controller, "RayWorkerGroup", group)
    config = smallest_job.load()
    with suppress(Reached):
        startup._start_actors(config, lambda _: None, SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    address, port = base.get_master_addr_port._function(given["master_port_range"])
    assert address == "127.0.0.1" and int(port) in range(20000, 30000)


def test_two_runs_search_from_different_ports_and_have_room() -> None:
    searched = [rendezvous_ports.search_range(random.Random(seed)) for seed in range(9)]
    assert len({first for first, _ in searched}) == 9
    assert all(last - first >= 5000 for first, last in searched)


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    for first in range(20000, 30000):
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", first))
            _, port = base.get_master_addr_port._function([first, 30000])
            assert int(port) > first
            return
