"""Networks and batches of unusual types: no raw errors and no false alarms."""

from __future__ import annotations

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F

from normless.errors import InputsError


class Carried(nn.Module):
    """A recurrent network that carries its hidden state along."""

    def __init__(self, detached: bool, remembers: bool = True) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 3)
        self.detached, self.remembers = detached, remembers
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y, hidden = self.rnn(x, self.hidden if self.remembers else None)
        self.hidden = hidden.detach() if self.detached else hidden
        result: Tensor = self.head(y[:, -1])
        return result


def test_hidden_state_that_is_carried_along() -> None:
    batch = torch.randn(24, 6, 4), torch.arange(24) % 3
    found = diagnose(Carried(detached=True), batch)
    assert not kinds(found)
    assert "kept_state" in [advice.kind for advice in found.advice]
    wrong = diagnose(Carried(detached=False), batch).findings[0]
    assert (wrong.kind, wrong.where) == ("undetached_state", ("hidden",))
    # An attribute that is written and never read is harmless.
    assert not kinds(diagnose(Carried(detached=False, remembers=False), batch))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")
def test_parts_in_torchscript() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.jit.trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), torch.randn(2, 8))
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.body(x))
            return result

    torch.manual_seed(0)
    assert not kinds(diagnose(Part(), (torch.randn(24, 8), torch.arange(24) % 3)))


def test_a_lazy_network_is_refused_with_a_way_out() -> None:
    with pytest.raises(InputsError, match="call it on a batch"):
        diagnose(nn.Sequential(nn.LazyLinear(3)), (torch.randn(24, 8), torch.arange(24) % 3))


@pytest.mark.parametrize("form", ["list", "sparse", "complex"])
def test_inputs_of_other_types(form: str) -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

        def forward(self, x: Tensor | list[Tensor]) -> Tensor:
            if isinstance(x, list):
                return torch.stack([self.body(row) for row in x])
            dense = x.to_dense() if x.is_sparse else x
            result: Tensor = self.body(dense.real if dense.is_complex() else dense)
            return result

    torch.manual_seed(0)
    x, y = torch.randn(24, 8), torch.arange(24) % 3
    given = {"list": ([*x],), "sparse": x.to_sparse(), "complex": x + 1j}[form]
    assert not kinds(diagnose(Read(), (given, y), loss=F.cross_entropy))


def test_complex_outputs() -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(self.body(x))

    torch.manual_seed(0)
    model, targets = Spectrum(), torch.fft.rfft(torch.randn(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    diagnosis = diagnose(
        model,
        (torch.randn(32, 8), targets),
        loss=lambda o, t: (o - t).abs().square().mean(),
        optimizer=optimizer,
        trial_steps=10,
    )
    assert not kinds(diagnosis), str(diagnosis)
