"""Networks of a user that a captured graph would train wrongly: trained as eagerly, or refused with a reason."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_helpers import NEEDS_CARD, Finished, assert_same_run, config, finished, run, written

from normless.errors import UnresolvedStructureError
from normless_lab.train import train

pytestmark = NEEDS_CARD

BASE = """
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


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
    # Work in place on activations.
    "in place": "def block(self, h):\n    h = h + F.relu_(self.branch(h))\n    h *= 0.5\n    return h.clamp_(max=4)",
    # Draws of the card's own generator must go on from step to step.
    "noise": (
        "def block(self, h):\n    noise = 0.3 * torch.randn_like(h) if self.training else 0\n"
        "    return h + self.branch(h) + noise"
    ),
    # No gradient in any step, so no decay and no momentum either: a gradient of zeros would decay it.
    "unused parameter": (
        "def prepare(self):\n    self.spare = nn.Linear(32, 32)\ndef block(self, h):\n    return h + self.branch(h)"
    ),
    "frozen parameter": (
        "def prepare(self):\n    self.branch.weight.requires_grad_(False)\n"
        "def block(self, h):\n    return h + self.branch(h)"
    ),
    # Buffers written in place and put anew in each step; the graph reads the memory of the capture.
    "buffer in place": (
        "def prepare(self):\n    self.register_buffer('mean', torch.zeros(32))\n"
        "def block(self, h):\n"
        "    if self.training:\n        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))\n"
        "    return h - self.mean + self.branch(h)"
    ),
    "buffer put anew": (
        "def prepare(self):\n    self.register_buffer('mean', torch.zeros(32))\n"
        "def block(self, h):\n"
        "    if self.training:\n        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)\n"
        "    return h - self.mean + self.branch(h)"
    ),
    # The host waits for a value of the card, as a number or in a Python branch.
    "item": "def block(self, h):\n    return h + self.branch(h) / (1 + h.detach().abs().mean().item())",
    "branch on data": (
        "def block(self, h):\n    loud = h.detach().mean().item() > 0.3\n"
        "    return h + self.branch(h) * (2.0 if loud else 0.5)"
    ),
    # State of Python that a replay does not move: a period of two, and a change long after any capture.
    "every other call": (
        "def block(self, h):\n    self.calls += self.training\n"
        "    return h + self.branch(h) * (1.0 if self.calls % 2 else 0.1)"
    ),
    "after twenty calls": (
        "def block(self, h):\n    self.calls += self.training\n"
        "    return h + self.branch(h) * (1.0 if self.calls <= 20 else 0.1)"
    ),
    # Stochastic depth by each generator of the host.
    "random": (
        "def block(self, h):\n    keep = not self.training or random.random() < 0.5\n"
        "    return h + self.branch(h) * (1.0 if keep else 0.0)"
    ),
    "numpy.random": (
        "def block(self, h):\n    keep = not self.training or np.random.rand() < 0.5\n"
        "    return h + self.branch(h) * (1.0 if keep else 0.0)"
    ),
    "torch on the host": (
        "def block(self, h):\n    keep = not self.training or bool(torch.rand(()) < 0.5)\n"
        "    return h + self.branch(h) * (1.0 if keep else 0.0)"
    ),
    # A number of the host that is copied to the card: a replay copies the old one.
    "copied from the host": (
        "def block(self, h):\n    self.calls += self.training\n"
        "    return h + self.branch(h) * torch.tensor(1.0 / (1 + self.calls)).to(h)"
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
    # Its first gradient comes when the others have their momentum.
    "first gradient late": (
        "def block(self, h):\n    self.calls += self.training\n    return h + self.branch(h) if self.calls > 9 else h"
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
    np.random.seed(4)  # noqa: NPY002 - the generator that networks without one of their own use
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


def test_a_mask_of_all_examples_is_drawn_anew_in_each_step(tmp_path: Path) -> None:
    """The loss does not depend on the order of the examples, nor, at this rate, on the step: only on the mask."""
    model = network(
        tmp_path,
        "def prepare(self):\n    self.shift = nn.Parameter(torch.arange(10.0))\n"
        "def block(self, h):\n    return h\n"
        "def head_(self, h):\n    return h",
    )
    file = Path(model.removesuffix(":net"))
    file.write_text(
        file.read_text().replace(
            "return self.head(self.block(h))",
            "return 0 * self.head(self.branch(h)) + F.dropout(self.shift, 0.5, self.training)",
        )
    )
    losses = trained(tmp_path / "auto", model, rate=1e-12, data="digits(train=32, test=20)", epochs=30).losses
    assert len({round(loss, 6) for loss in losses}) > 24
    assert len({round(loss, 6) for loss in losses[15:]}) > 12


FAILING = {
    "raises": ("raise OverflowError('too many calls')", OverflowError, "too many calls"),
    "out of memory": ("torch.empty(1 << 47, dtype=torch.uint8, device=h.device)", RuntimeError, "memory"),
}


@pytest.mark.filterwarnings("ignore:The training step is not captured")
@pytest.mark.parametrize("at", [1, 3, 12], ids=lambda at: f"step {at}")
@pytest.mark.parametrize("what", FAILING)
def test_an_error_of_the_network_is_told_and_leaves_the_card_usable(what: str, at: int, tmp_path: Path) -> None:
    """In the first step, while a capture warms up, and after it, when Python still has to run."""
    statement, error, words = FAILING[what]
    model = network(
        tmp_path,
        f"def block(self, h):\n    self.calls += self.training\n    if self.calls == {at}:\n        {statement}\n"
        "    return h + self.branch(h)",
    )
    with pytest.raises(error, match=words):
        trained(tmp_path / "fails", model)
    assert run(tmp_path / "next", epochs=1).result.outcome in ("trained", "chance")


@pytest.mark.filterwarnings("ignore:The training step is not captured")
def test_a_network_that_raised_is_resumed_once_it_is_mended(tmp_path: Path) -> None:
    """The flag is a file beside the network's, so that the run stays the same."""
    flag = tmp_path / "mended"
    model = network(
        tmp_path,
        "def block(self, h):\n    self.calls += self.training\n"
        f"    if self.calls == 9 and not __import__('os').path.exists({str(flag)!r}):\n"
        "        raise OverflowError\n    return h + self.branch(h)",
    )
    settings = {"model": model, "scheme": "as_written", "decay_policy": "all"}
    with pytest.raises(OverflowError):
        train(config(**settings), tmp_path / "run")
    flag.touch()
    resumed = finished(tmp_path / "run", train(config(**settings), tmp_path / "run"))
    assert_same_run(resumed, run(tmp_path / "whole", **settings, graph="never"), 1e-7)
