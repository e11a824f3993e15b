"""Steps in the wrong direction, rates of zero, and gradients of exactly zero."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from normless.probes import own_loss
from tests.faults.checks.rows import check, checks, given, layers, numbers
from tests.faults.training import module

X, Y = numbers(32, 50, 10)
CRITIC = nn.Linear(10, 1)


def _policy(outputs, targets):
    advantages = torch.linspace(-1, 1, len(targets))
    return (F.cross_entropy(outputs, targets, reduction="none") * advantages).mean()


def _gaussian(outputs, targets):
    mean, log_variance = outputs.chunk(2, 1)
    return (0.5 * log_variance + 0.5 * (mean - 0.1 * targets[:, None]) ** 2 / log_variance.exp()).mean() - 5


def _cosine(outputs):
    return F.cosine_similarity(outputs[:, :5], outputs[:, 5:])


def _share(outputs, targets):
    return outputs.softmax(1).gather(1, targets[:, None]).mean()


def _squares(outputs, targets):
    return F.mse_loss(outputs.sigmoid(), F.one_hot(targets, 10).float())


def _stepped(loss_and_direction):
    loss, maximize = loss_and_direction
    return given(
        layers(50, 32, 10, act=nn.Tanh), X, Y, loss, lambda model: SGD(model.parameters(), 0.1, maximize=maximize)
    )


checks(
    {
        "cross_entropy_maximized": ("ascent", (F.cross_entropy, True), (F.cross_entropy, False)),
        "negative_cross_entropy": (
            "wrong_sign",
            (lambda z, y: -F.cross_entropy(z, y), False),
            (lambda z, y: -F.cross_entropy(z, y), True),
        ),
        "squares_maximized": ("ascent", (lambda z, y: F.mse_loss(z[:, 0], y.float()), True)),
        "negative_squares": (
            "wrong_sign",
            (lambda z, y: -1e-4 * F.mse_loss(z[:, 0], y.float(), reduction="sum"), False),
            (lambda z, y: F.mse_loss(z[:, 0], 1e4 * y.float(), reduction="sum"), False),
        ),
        "negative_bounded_squares": ("wrong_sign", (lambda z, y: -_squares(z, y), False), (_squares, False)),
        "bounded_squares_maximized": (("ascent", "wrong_sign"), (_squares, True)),
        "reward_minimized": ("wrong_sign", (_share, False), (_share, True)),
        "cosine_minimized": (
            "wrong_sign",
            (lambda z, y: _cosine(z).mean() + 0 * y.sum(), False),
            (lambda z, y: 1 - _cosine(z).mean() + 0 * y.sum(), False),
        ),
        "signed_cosines": ("", (lambda z, y: (_cosine(z) * (-1.0) ** y).mean(), False)),
        "negative_cosine": ("", (lambda z, y: -F.cosine_similarity(z, F.one_hot(y, 10).float()).mean(), False)),
        "policy_minimized": ("", (_policy, False)),
        "policy_maximized": ("", (_policy, True)),
        "gaussian_likelihood": ("", (_gaussian, False)),
        "wasserstein": ("", (lambda z, y: (z.mean(1) * (2.0 * (y % 2) - 1)).mean(), False)),
        "softplus_without_bound": ("", (lambda z, y: -F.softplus(z).mean(), False)),
        "softplus_of_a_critic": ("", (lambda z, y: -F.softplus(CRITIC(z)).mean(), False)),
    },
    _stepped,
)


def _own_loss(sign):
    """A network that returns its loss."""

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": sign * F.cross_entropy(logits, labels), "logits": logits}

    model = module(forward, body=layers(50, 32, 10, act=nn.Tanh))
    return given(model, {"x": X, "labels": Y}, None, own_loss)


check("own_negative_loss", "wrong_sign", lambda: _own_loss(-1.0), lambda: _own_loss(1.0))


def _rates(first, frozen=False):
    model = layers(50, 32, 10, act=nn.Tanh)
    model[0].requires_grad_(not frozen)
    groups = [{"params": model[0].parameters(), "lr": first}, {"params": model[2].parameters()}]
    return given(model, X, Y, optimizer=Adam(groups, 1e-2))


check("rate_of_zero_in_a_group", "zero_rate", lambda: _rates(0.0), lambda: _rates(0.0, frozen=True), "0.weight")
check(
    "rate_of_zero",
    "zero_rate",
    lambda: given(layers(50, 32, 10), X, Y, optimizer=lambda net: SGD(net.parameters(), 0.0), trial_steps=5),
    says="all groups",
)


def _stopped(function, last=None, zeros=False):
    """Two layers with a function between them."""
    torch.manual_seed(0)

    def forward(self, x):
        y = self.head(function(self.encoder(x)))
        return y if last is None else last(y)

    model = module(forward, encoder=nn.Linear(50, 32), head=nn.Linear(32, 10))
    if zeros:
        nn.init.zeros_(model.head.weight)
    return given(model, X, Y)


for operation, stops, passes in (
    ("round", torch.round, lambda x: x + (torch.round(x) - x).detach()),
    ("sign", torch.sign, lambda x: x * torch.sign(x)),
    ("clamp", lambda x: x.clamp(5, 6) + x.detach(), lambda x: x.clamp(-0.1, 0.1)),
    ("floor", lambda x: (10 * x).floor() / 10, lambda x: torch.where(x > 0.5, torch.sign(x), x)),
    ("threshold", lambda x: F.threshold(x, 50.0, 1.0) + x.detach(), None),
):
    check(
        f"no_gradient_of_{operation}",
        "zero_gradient",
        lambda f=stops: _stopped(f),
        passes and (lambda f=passes: _stopped(f)),
        rf"direction.py.*2 of 4.*'operation': '{operation}'.*where=\('encoder',\)",
    )
check(
    "clamped_outputs",
    "zero_gradient",
    lambda: _stopped(torch.tanh, lambda x: x.clamp(min=5.0)),
    lambda: _stopped(torch.tanh, zeros=True),
    "'operation': 'clamp'",
)
