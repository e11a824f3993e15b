"""Every test starts from the same random state, on as many threads as its worker may use."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# The same examples in every run; `--hypothesis-profile=default` draws new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# Several workers share the cores; more threads than cores make each of them slower.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
