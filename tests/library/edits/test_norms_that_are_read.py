"""Forward code that reads the parameters of norms which an edit removes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import normless as nl


class ReadsParameters(nn.Module):
    """Forward code that takes its dtype from norms, as state space models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.norm = nn.LayerNorm(4)
        self.layer, self.norm2, self.out = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.layer(self.inner.norm(x.to(self.inner.norm.weight.dtype)).relu())
        return self.out(self.norm2(x)) * self.inner.norm.bias.new_ones(2)


def test_forward_code_may_read_the_parameters_of_a_removed_norm() -> None:
    model = ReadsParameters()
    nn.init.normal_(model.inner.norm.weight)
    x = torch.randn(3, 4)
    net = nl.convert(model, "skipinit(alpha=1)", x)
    h = model.embed(x)
    torch.testing.assert_close(net(x), model.out(h + model.layer(h.relu())))
    assert isinstance(net.inner.norm, nn.Identity)
    assert torch.equal(net.inner.norm.weight, torch.ones(4))
    assert torch.equal(net.inner.norm.bias, torch.zeros(4))
    assert not any("norm" in name for name in net.state_dict())
    assert not list(net.norm2.buffers()), "nothing reads its parameters"
    assert net.double()(x.double()).dtype == torch.float64
