"""Healthy trainings of unusual forms: inputs, outputs and losses."""

from collections.abc import Callable
from types import SimpleNamespace
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
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out)
    )


def calls(function: Callable[..., Any], **parts: Any) -> nn.Module:
    """Return a module that computes a function of itself and its inputs."""
    return module(lambda self, *args: function(self, *args), **parts)


def adam(model: nn.Module, rate: float = 3e-3) -> Optimizer:
    return Adam(model.parameters(), rate)


@training
def positive_rates() -> tuple:
    model = calls(lambda self, x: self.body(x).squeeze(-1), body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, x[:, 0].exp().round()), nn.PoissonNLLLoss(), adam(model)


@training
def binary_logits() -> tuple:
    model = calls(lambda self, x: self.body(x)[:, 0], body=body(out=1))
    x = torch.randn(32, 8)
    return model, (x, (x[:, 0] > 0).float()), F.binary_cross_entropy_with_logits, adam(model)


@training
def a_loss_as_output() -> tuple:
    model = calls(lambda self, x, y: F.cross_entropy(self.body(x), y), body=body())
    return model, (labelled(), None), lambda output, _: output, adam(model)


@training
def a_dictionary_of_losses():
    def run(self, x, y):
        features = self.body(x)
        return {"classes": F.cross_entropy(features, y), "size": 0.01 * features.square().mean()}

    model = calls(run, body=body())
    return model, (labelled(), torch.zeros(1)), lambda losses, _: sum(losses.values()), adam(model)


@training
def an_object() -> tuple:
    model = calls(lambda self, x: SimpleNamespace(logits=self.body(x), hidden=x), body=body())
    return model, labelled(), lambda out, y: F.cross_entropy(out.logits, y), adam(model)


@training
def the_whole_batch() -> tuple:
    model = calls(lambda self, x: self.body(x), body=body(out=8))

    def loss(outputs, batch):
        return F.mse_loss(outputs, batch[0].roll(1, 1).tanh())

    x, y = labelled()
    return model, (x, y), loss, adam(model)


@training
def pairs_in_a_contrastive_loss() -> tuple:
    model = calls(lambda self, a, b: (self.body(a), self.body(b)), body=body(out=16))
    a = torch.randn(16, 8)

    def loss(outputs, _):
        first, second = (F.normalize(part, dim=1) for part in outputs)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(16))

    return model, ((a, a + 0.1 * torch.randn(16, 8)), torch.arange(16)), loss, adam(model)


@training
def triplets() -> tuple:
    model = calls(lambda self, a, b, c: tuple(map(self.body, (a, b, c))), body=body(out=16))
    a = torch.randn(16, 8)
    batch = (a, a + 0.1 * torch.randn(16, 8), torch.randn(16, 8))
    return model, (batch, None), lambda out, _: F.triplet_margin_loss(*out), adam(model)


@training
def graphs_that_are_pooled():
    def run(self, x, edges, of):
        x = self.first(x).relu()
        x = x + torch.zeros_like(x).index_add(0, edges[1], self.second(x)[edges[0]])
        return self.head(torch.zeros(10, 16).index_add(0, of, x))

    model = calls(run, first=nn.Linear(8, 16), second=nn.Linear(16, 16), head=nn.Linear(16, 2))
    batch = torch.randn(60, 8), torch.randint(60, (2, 120)), torch.arange(10).repeat_interleave(6)
    return model, (batch, torch.arange(10) % 2), F.cross_entropy, adam(model, 1e-2)


@training
def time_on_the_first_axis() -> tuple:
    model = calls(lambda self, x: self.head(self.rnn(x)[0][-1]), rnn=nn.GRU(4, 32), head=nn.Linear(32, 3))
    x = torch.randn(7, 24, 4)
    return model, (x, x[-1, :, :3].argmax(1)), F.cross_entropy, adam(model, 1e-2)


@training
def packed_sequences():
    def run(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0][-1])

    model = calls(run, rnn=nn.LSTM(4, 32, batch_first=True), head=nn.Linear(32, 3))
    x = torch.randn(24, 7, 4)
    return model, ((x, torch.arange(24) % 5 + 3), x[:, 0, :3].argmax(1)), F.cross_entropy, adam(model, 1e-2)


@training
def alignments():
    def loss(outputs, targets):
        return F.ctc_loss(outputs.log_softmax(-1).transpose(0, 1), *targets, blank=0)

    model = calls(
        lambda self, x: self.head(self.rnn(x)[0]), rnn=nn.GRU(4, 32, batch_first=True), head=nn.Linear(32, 6)
    )
    targets = torch.randint(1, 6, (8, 4)), torch.full((8,), 20), torch.full((8,), 4)
    return model, (torch.randn(8, 20, 4), targets), loss, adam(model, 1e-2)
