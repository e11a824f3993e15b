"""Networks of a user that a captured graph would train wrongly: trained as eagerly, or refused with a reason."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import NEEDS_CARD, Finished, assert_same_run, run, written

from normless.errors import UnresolvedStructureError

pytestmark = NEEDS_CARD

BASE = """
import random

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.calls = 0
        self.prepare()

    def prepare(self):
        pass

    def forward(self, x):
        h = torch.relu(self.first(x.flatten(1)))
        return self.head(self.block(h))


def net():
    return Net()
"""

# The rest of the class, by what is hard about it.
SAME: dict[str, str] = {
    # Draws of the card's own generator must go on from step to step.
    "noise": (
        "def block(self, h):\n    noise = 0.3 * torch.randn_like(h) if self.training else 0\n"
        "    return h + self.branch(h) + noise"
    ),
    # No gradient in any step, so no decay and no momentum either: a gradient of zeros would decay it.
    "unused parameter": (
        "def prepare(self):\n    self.spare = nn.Linear(32, 32)\ndef block(self, h):\n    return h + self.branch(h)"
    ),
    "buffer put anew": (
        "def prepare(self):\n    self.register_buffer('mean', torch.zeros(32))\n"
        "def block(self, h):\n"
        "    if self.training:\n        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)\n"
        "    return h - self.mean + self.branch(h)"
    ),
    # The host waits for a value of the card.
    "branch on data": (
        "def block(self, h):\n    loud = h.detach().mean().item() > 0.3\n"
        "    return h + self.branch(h) * (2.0 if loud else 0.5)"
    ),
    # Stochastic depth by a generator of the host.
    "random": (
        "def block(self, h):\n    keep = not self.training or random.random() < 0.5\n"
        "    return h + self.branch(h) * (1.0 if keep else 0.0)"
    ),
    # A generator of its own is not the graph's.
    "generator of its own": (
        "def block(self, h):\n"
        "    if not hasattr(self, 'draw'):\n        self.draw = torch.Generator(h.device).manual_seed(3)\n"
        "    noise = torch.randn(h.shape, generator=self.draw, device=h.device, dtype=h.dtype)\n"
        "    return h + self.branch(h) + (0.3 * noise if self.training else 0)"
    ),
    # A parameter is used in every other step: without a gradient it must rest, and with momentum it would not.
    "no gradient in some steps": (
        "def block(self, h):\n    self.calls += self.training\n    return h + self.branch(h) if self.calls % 2 else h"
    ),
}


def network(folder: Path, rest: str) -> str:
    """The text of a user network whose class has these methods; its file has a folder of its own."""
    body = "".join(f"    {line}\n" for line in rest.splitlines())
    text = BASE.replace(
        "    def prepare(self):\n        pass\n",
        "" if "def prepare" in rest else "    def prepare(self):\n        pass\n",
    )
    return f"{written(folder, text.replace('    def forward', body + chr(10) + '    def forward'))}:net"


def trained(folder: Path, model: str, **settings: Any) -> Finished:
    """A run from the same states of all generators of the host."""
    random.seed(4)
    torch.manual_seed(4)
    return run(folder, model=model, scheme="as_written", decay_policy="all", **{"epochs": 4} | settings)


# A step that is not captured says so.
@pytest.mark.filterwarnings("ignore:The training step is not captured")
@pytest.mark.parametrize("rest", SAME.values(), ids=SAME)
def test_a_network_of_the_user_trains_as_eagerly_or_is_refused(rest: str, tmp_path: Path) -> None:
    model = network(tmp_path, rest)
    try:
        eager = trained(tmp_path / "never", model, graph="never")
    except UnresolvedStructureError as error:
        pytest.skip(f"this version of torch does not trace it: {error}")
    try:
        captured = trained(tmp_path / "auto", model)
    except ValueError as refusal:
        assert "graph" in str(refusal), "a refusal says what to set"  # noqa: PT017 - a run is as good
        return
    assert_same_run(captured, eager, 1e-7)
