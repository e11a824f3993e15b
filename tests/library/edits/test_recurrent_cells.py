"""Recurrent cells and blocks in a loop get one parameter each, not one a step, held against loops by hand."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError

close = torch.testing.assert_close
ALPHAS = (0.3, -0.7)


class Cell(nn.Module):
    """A convolutional LSTM cell with a norm of its gates (Shi et al. 2015, equation 3, without peepholes)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates, self.norm = nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.GroupNorm(1, 4 * width)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        i, f, g, o = self.norm(self.gates(torch.cat([x, state[0]], 1))).chunk(4, 1)
        memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * memory.tanh(), memory


class ByStep(nn.Module):
    """Two cells with residual sums; `between` is the sum, which the oracle replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 2)
        self.cells = nn.ModuleList(Cell(4) for _ in range(2))

    def start(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(y), torch.zeros_like(y)

    def forward(self, x: Tensor) -> Any:
        y = self.stem(x[:, 0])
        states = [self.start(y) for _ in self.cells]
        for step in range(x.shape[1]):
            y = F.relu(self.stem(x[:, step]))
            for number, cell in enumerate(self.cells):
                states[number] = cell(y, states[number])
                y = y + states[number][0]
        return self.head(y.mean((2, 3)))


class ByCell(ByStep):
    """The outer loop is over cells, as in the usual implementation of stacked cells."""

    def forward(self, x: Tensor) -> Any:
        steps = [F.relu(self.stem(x[:, step])) for step in range(x.shape[1])]
        for cell in self.cells:
            state = self.start(steps[0])
            for step, y in enumerate(steps):
                state = cell(y, state)
                steps[step] = y + state[0]
        return self.head(steps[-1].mean((2, 3)))


def lstm_by_hand(net: Any, x: Tensor, alphas: tuple[float, ...]) -> Any:
    """The outputs without norms, with a multiplier for each cell, by the weights of `net`."""
    states: list[Any] = [None, None]
    for step in range(x.shape[1]):
        y = net.stem(x[:, step]).relu()
        for number, cell in enumerate(net.cells):
            hidden, memory = states[number] or (torch.zeros_like(y), torch.zeros_like(y))
            i, f, g, o = cell.gates(torch.cat([y, hidden], 1)).chunk(4, 1)
            memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
            states[number] = o.sigmoid() * memory.tanh(), memory
            y = y + alphas[number] * states[number][0]
    return net.head(y.mean((2, 3)))


def multipliers(net: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in net.named_parameters() if name.endswith("multiplier")]


def set_to(net: nn.Module, values: tuple[float, ...]) -> None:
    found = multipliers(net)
    assert len(found) == len(values)
    for parameter, value in zip(found, values, strict=True):
        nn.init.constant_(parameter, value)


@pytest.mark.parametrize("kind", [ByStep, ByCell])
def test_a_conv_lstm_has_a_multiplier_for_each_cell_and_takes_other_lengths(kind: type[ByStep]) -> None:
    net = nl.convert(kind(), "skipinit", torch.randn(2, 4, 3, 6, 6))
    set_to(net, ALPHAS)
    for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net))):
        for steps in (1, 2, 4, 6):
            x = torch.randn(3, steps, 3, 6, 6)
            close(one(x), lstm_by_hand(one, x, ALPHAS))
    net(torch.randn(2, 6, 3, 6, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in multipliers(net))


class ByMethod(ByStep):
    """A method adds, which both loops call."""

    def added(self, y: Tensor, step: Tensor) -> Tensor:
        return y + step

    def forward(self, x: Tensor) -> Any:
        steps = [F.relu(self.stem(x[:, step])) for step in range(x.shape[1])]
        for cell in self.cells:
            state, step = self.start(steps[0]), 0
            while step < len(steps):
                state = cell(steps[step], state)
                steps[step] = self.added(steps[step], state[0])
                step += 1
        return self.head(steps[-1].mean((2, 3)))


class InList(ByStep):
    """The inner loop is a list, whose start no statement counts."""

    def forward(self, x: Tensor) -> Any:
        steps = [F.relu(self.stem(x[:, step])) for step in range(x.shape[1])]
        for cell in self.cells:
            steps = [y + cell(y, self.start(y))[0] for y in steps]
        return self.head(steps[-1].mean((2, 3)))


@pytest.mark.parametrize("kind", [ByMethod, InList])
def test_sums_that_no_loop_tells_apart_are_refused(kind: type[ByStep]) -> None:
    words = r"line \d+ of its code, in \w+, runs .*for .*several branches.* in a module of each branch"
    with pytest.raises(UnsupportedEditError, match=words):
        nl.convert(kind(), "skipinit", torch.randn(2, 3, 3, 6, 6))


class Gru(nn.Module):
    """A cell that is written in the loop: h + U(σ(R z) ⊙ tanh(C z)), z = N([x, h]); its functions are of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.read, self.norm = nn.Linear(5, 8), nn.Linear(5, 8), nn.LayerNorm(16)
        self.reset, self.candidate, self.out, self.head = (
            nn.Linear(16, 8),
            nn.Linear(16, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Any:
        h = self.first(x[:, 0])
        for step in range(x.shape[1]):
            z = self.norm(torch.cat([self.read(x[:, step]), h], -1))
            h = h + self.out(torch.sigmoid(self.reset(z)) * torch.tanh(self.candidate(z)))
        return self.head(h)


def test_a_gru_written_in_a_loop_has_one_multiplier() -> None:
    net: Any = nl.convert(Gru(), "skipinit(keep_scale=False)", torch.randn(2, 4, 5))
    set_to(net, (0.4,))
    for steps in (1, 4, 7):
        x = torch.randn(2, steps, 5)
        h = net.first(x[:, 0])
        for step in range(steps):
            z = torch.cat([net.read(x[:, step]), h], -1)
            inner = net.reset(z).sigmoid() * net.candidate(z).tanh()
            h = h + 0.4 * F.linear(inner, net.out.weight) + 0.4 * net.out.bias
        close(net(x), net.head(h))


class Looped(nn.Module):
    """One block, applied `steps` times; its norm and activation are functions in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up, self.down, self.head = nn.Linear(5, 8), nn.Linear(8, 9), nn.Linear(9, 8), nn.Linear(8, 3)
        self.steps = 4

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x)
        for _ in range(self.steps):
            h = h + self.down(F.relu(self.up(F.layer_norm(h, (8,)))))
        return self.head(h)


def test_a_block_in_a_loop_has_fixups_scalars_once() -> None:
    model, x = Looped(), torch.randn(6, 5)
    net: Any = nl.convert(model, "fixup", x)
    new = {name: value.data for name, value in net.named_parameters() if value.numel() == 1}
    for number, value in enumerate(new.values()):
        value.fill_(0.1 * number - 0.25)
    nn.init.normal_(net.down.weight)
    names = ("up.input_bias", "up.output_bias", "down.multiplier", "down.input_bias", "head.input_bias")
    assert {*new} == {*names}
    b1, b2, alpha, b3, b4 = (new[name] for name in names)
    for steps in (4, 2, 7):
        net.steps, h = steps, model.stem(x)
        for _ in range(steps):
            inner = F.relu(F.linear(h + b1, net.up.weight, net.up.bias) + b2) + b3
            h = h + alpha * F.linear(inner, net.down.weight, net.down.bias)
        close(net(x), F.linear(h + b4, net.head.weight, net.head.bias))
    # (1/√L) of 4 steps.
    close(net.up.weight, model.up.weight * 0.5)


class Tied(nn.Module):
    """A transformer layer in a loop (Dehghani et al. 2019, Universal Transformers), its attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.q, self.k, self.v, self.o, self.up, self.down = (nn.Linear(8, 8) for _ in range(6))
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)

    def attended(self, h: Tensor) -> Tensor:
        logits = self.q(h) @ self.k(h).transpose(-2, -1) / 8**0.5
        return logits.softmax(-1) @ self.v(h)

    def forward(self, ids: Tensor, steps: int = 3) -> Any:
        h = self.table(ids)
        for _ in range(steps):
            h = h + self.o(self.attended(self.norm1(h)))
            h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.head(h)


IDS = torch.randint(0, 11, (2, 5))


def test_a_tied_transformer_has_a_multiplier_for_each_branch() -> None:
    net: Any = nl.convert(Tied(), "rezero(keep_scale=False)", IDS)
    set_to(net, ALPHAS)

    def plain(layer: Any, x: Tensor) -> Tensor:
        return F.linear(x, layer.weight, layer.bias)

    for steps in (1, 3, 5):
        h = net.table(IDS)
        for _ in range(steps):
            h = h + 0.3 * plain(net.o, (net.q(h) @ net.k(h).mT / 8**0.5).softmax(-1) @ net.v(h))
            h = h - 0.7 * plain(net.down, F.gelu(net.up(h)))
        close(net(IDS, steps=steps), net.head(h))


def test_a_tied_transformer_has_one_norm_of_queries() -> None:
    net: Any = nl.convert(Tied(), "qk_norm", IDS)
    assert sum(name.endswith("q_norm.weight") for name, _ in net.named_parameters()) == 1
    assert net(IDS, steps=6).isfinite().all()


def test_weights_of_the_first_step_elsewhere_stay_refused() -> None:
    """The stem's layer is the branch's too, so it has no scale of its own."""

    class Shared(Gru):
        def forward(self, x: Tensor) -> Any:
            h = self.first(x[:, 0])
            for step in range(x.shape[1]):
                h = h + self.out(torch.tanh(self.first(x[:, step]) + h))
            return self.head(h)

    with pytest.raises(UnsupportedEditError, match=r"first, a.*: this one module runs at several places"):
        nl.convert(Shared(), "fixup", torch.randn(2, 4, 5))
