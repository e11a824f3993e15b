"""Healthy trainings of unusual forms: inputs, outputs and losses."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from tests.faults.catalogue import Training, row_of_kinds
from tests.faults.training import module


def training(build: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """Add a healthy row of the network, the batch, the loss and the optimizer that a function returns."""

    def make() -> Training:
        model, batch, loss, optimizer = build()
        return Training(model, batch, loss, optimizer, lambda: float("nan"))

    make.__module__ = build.__module__
    row_of_kinds(build.__name__, (), "seen", make)
    return build


def labelled(count: int = 32, width: int = 8, classes: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, x[:, :classes].argmax(1)


def body(width: int = 8, hidden: int = 32, out: int = 4) -> nn.Sequential:
    first = nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(hidden, out))


def adam(model: nn.Module, rate: float = 3e-3) -> Optimizer:
    return Adam(model.parameters(), rate)


@training
def positive_rates():
    model = module(lambda self, x: self.body(x).squeeze(-1), body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, x[:, 0].exp().round()), nn.PoissonNLLLoss(), adam(model)


@training
def a_loss_as_output():
    model = module(lambda self, x, y: F.cross_entropy(self.body(x), y), body=body())
    return model, (labelled(), None), lambda output, _: output, adam(model)


@training
def a_dictionary_of_losses():
    def run(self, x, y):
        features = self.body(x)
        return {"classes": F.cross_entropy(features, y), "size": 0.01 * features.square().mean()}

    model = module(run, body=body())
    return model, (labelled(), torch.zeros(1)), lambda losses, _: sum(losses.values()), adam(model)


@training
def graphs_that_are_pooled():
    def run(self, x, edges, of):
        x = self.first(x).relu()
        x = x + torch.zeros_like(x).index_add(0, edges[1], self.second(x)[edges[0]])
        return self.head(torch.zeros(10, 16).index_add(0, of, x))

    model = module(run, first=nn.Linear(8, 16), second=nn.Linear(16, 16), head=nn.Linear(16, 2))
    batch = torch.randn(60, 8), torch.randint(60, (2, 120)), torch.arange(10).repeat_interleave(6)
    return model, (batch, torch.arange(10) % 2), F.cross_entropy, adam(model, 1e-2)


@training
def alignments():
    def loss(outputs, targets):
        return F.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), *targets, blank=0)

    model = module(
        lambda self, x: self.head(self.rnn(x)[0]), rnn=nn.GRU(4, 32, batch_first=True), head=nn.Linear(32, 6)
    )
    targets = torch.randint(1, 6, (8, 4)), torch.full((8,), 20), torch.full((8,), 4)
    return model, (torch.randn(8, 20, 4), targets), loss, adam(model, 1e-2)
