"""Fixture `second`: the second device."""

import pytest
import torch

from tests.ml.second_device import device


@pytest.fixture(scope="session")
def second() -> torch.device:
    return device.load()
