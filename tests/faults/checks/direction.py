"""Steps in the wrong direction, rates of zero, and gradients of exactly zero."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from normless.probes.hooks._losses import own_loss
from tests.faults.checks.rows import checks, given, layers, numbers
from tests.faults.training import module

X, Y = numbers(32, 50, 10)
CRITIC = layers(10, 1)
CE = F.cross_entropy


def _policy(outputs, targets):
    return (CE(outputs, targets, reduction="none") * torch.linspace(-1, 1, len(targets))).mean()


def _gaussian(outputs, targets):
    mean, log_variance = outputs.chunk(2, 1)
    return (0.5 * log_variance + 0.5 * (mean - 0.1 * targets[:, None]) ** 2 / log_variance.exp()).mean() - 5


def _cosine(outputs):
    return F.cosine_similarity(outputs[:, :5], outputs[:, 5:])


def _share(outputs, targets):
    return outputs.softmax(1).gather(1, targets[:, None]).mean()


def _bounded(outputs, targets):
    return F.mse_loss(outputs.sigmoid(), F.one_hot(targets, 10).float())


def _first(outputs, targets, scale=1.0):
    return F.mse_loss(outputs[:, 0], scale * targets.float(), reduction="sum")


def _stepped(loss, maximize=False):
    return given(
        layers(50, 32, 10, act=nn.Tanh), X, Y, loss, lambda net: SGD(net.parameters(), 0.1, maximize=maximize)
    )


rows = {
    "cross_entropy_maximized": ("ascent", (CE, True), CE),
    "negative_cross_entropy": ("wrong_sign", lambda z, y: -CE(z, y), (lambda z, y: -CE(z, y), True)),
    "squares_maximized": ("ascent", (lambda z, y: F.mse_loss(z[:, 0], y.float()), True)),
    "negative_squares": ("wrong_sign", lambda z, y: -1e-4 * _first(z, y), lambda z, y: _first(z, y, 1e4)),
    "negative_bounded_squares": ("wrong_sign", lambda z, y: -_bounded(z, y), _bounded),
    "bounded_squares_maximized": (("ascent", "wrong_sign"), (_bounded, True)),
    "reward_minimized": ("wrong_sign", _share, (_share, True)),
    "cosine_minimized": (
        "wrong_sign",
        lambda z, y: _cosine(z).mean() + 0 * y.sum(),
        lambda z, y: 1 - _cosine(z).mean() + 0 * y.sum(),
    ),
    "signed_cosines": ("", lambda z, y: (_cosine(z) * (-1.0) ** y).mean()),
    "negative_cosine": ("", lambda z, y: -F.cosine_similarity(z, F.one_hot(y, 10).float()).mean()),
    "policy_minimized": ("", _policy),
    "policy_maximized": ("", (_policy, True)),
    "gaussian_likelihood": ("", _gaussian),
    "wasserstein": ("", lambda z, y: (z.mean(1) * (2.0 * (y % 2) - 1)).mean()),
    "softplus_without_bound": ("", lambda z, y: -F.softplus(z).mean()),
    "softplus_of_a_critic": ("", lambda z, y: -F.softplus(CRITIC(z)).mean()),
}
checks(_stepped, rows)


def _own_loss(sign):
    """A network that returns its loss."""

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": sign * CE(logits, labels), "logits": logits}

    return given(module(forward, body=layers(50, 32, 10, act=nn.Tanh)), {"x": X, "labels": Y}, None, own_loss)


checks(_own_loss, {"own_negative_loss": ("wrong_sign", -1.0, 1.0)})


def _rates(first, frozen=False):
    model = layers(50, 32, 10, act=nn.Tanh)
    model[0].requires_grad_(not frozen)
    groups = [{"params": model[0].parameters(), "lr": first}, {"params": model[2].parameters()}]
    return given(model, X, Y, optimizer=Adam(groups, 1e-2))


def _of_rate(rate):
    return given(layers(50, 32, 10), X, Y, optimizer=lambda net: SGD(net.parameters(), rate), trial_steps=5)


checks(_rates, {"rate_of_zero_in_a_group": ("zero_rate", 0.0, (0.0, True), "0.weight")})
checks(_of_rate, {"rate_of_zero": ("zero_rate", 0.0, "all groups")})


def _stopped(function, last=lambda y: y, zeros=False):
    """Two layers with a function between them."""
    model = module(lambda self, x: last(self.head(function(self.encoder(x)))), encoder=(50, 32), head=(32, 10))
    if zeros:
        nn.init.zeros_(model.head.weight)
    return given(model, X, Y)


for operation, *functions in (
    ("round", torch.round, lambda x: x + (torch.round(x) - x).detach()),
    ("sign", torch.sign, lambda x: x * torch.sign(x)),
    ("clamp", lambda x: x.clamp(5, 6) + x.detach(), lambda x: x.clamp(-0.1, 0.1)),
    ("floor", lambda x: (10 * x).floor() / 10, lambda x: torch.where(x > 0.5, torch.sign(x), x)),
    ("threshold", lambda x: F.threshold(x, 50.0, 1.0) + x.detach()),
):
    says = rf"direction.py.*2 of 4.*'operation': '{operation}'.*where=\('encoder',\)"
    checks(_stopped, {f"no_gradient_of_{operation}": ("zero_gradient", *functions)}, says)
wrong, right = (torch.tanh, lambda x: x.clamp(min=5.0)), (torch.tanh, lambda x: x, True)
checks(_stopped, {"clamped_outputs": ("zero_gradient", wrong, right, "'operation': 'clamp'")})
