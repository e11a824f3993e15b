"""Diagnoses keep nothing of their passes."""

import gc

import torch
from torch import Tensor, nn

import normless as nl


def _live_tensors() -> int:
    """Count tensors with values, garbage too; torch's export leaves others, without values, to the collector."""
    return sum(type(value) in (Tensor, nn.Parameter) for value in gc.get_objects())


class Broken(nn.Module):
    """A network whose backward pass is not finite, so that its operations are searched."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) * 0).abs().sqrt())


def test_diagnoses_release_their_passes_without_the_garbage_collector() -> None:
    """test_memory_of_calls looks at all public functions, with the collector."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
    batch, optimizer = (torch.randn(8, 3, 6, 6), torch.randint(3, (8,))), torch.optim.SGD(model.parameters(), 0.05)
    broken, other = Broken(), (torch.randn(8, 8), torch.randint(3, (8,)))
    counts = []
    for _ in range(3):
        assert nl.diagnose(model, batch, optimizer=optimizer, trial_steps=2).healthy
        assert not nl.diagnose(broken, other, trial_steps=2).healthy
        counts.append(_live_tensors())
        gc.disable()
    gc.enable()
    assert counts[1:] == counts[:1] * 2
