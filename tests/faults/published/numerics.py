"""Faults of arithmetic: values or gradients that become infinite or NaN."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.training import accuracy, adam, finite, made, module, outputs_in_eval, r_squared, share_correct


@fault
def root_of_zero_distance(broken: bool) -> Training:
    """A distance is a square root, and some pairs are an item with itself: the gradient is 0 · ∞."""
    first, second = torch.randn(128, 12), torch.randn(128, 12)
    second[::8] = first[::8]
    y = (first[:, :3] - second[:, :3]).square().sum(1).sqrt()

    def forward(self, first, second):
        difference = self.embed(first) - self.embed(second)
        return self.scale * (difference.square().sum(1) + self.epsilon).sqrt()

    embed = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    scale = nn.Parameter(torch.tensor(1.0))
    model = module(forward, embed=embed, scale=scale, epsilon=0.0 if broken else 1e-8)
    return made(model, (first, second), y, adam(1e-2), success=finite(r_squared(model, (first, second), y), 0.0))


@fault
def logarithm_of_zero_probability(broken: bool) -> Training:
    """A hand-written cross entropy takes the logarithm of normalized ReLU scores, which can be 0."""
    x, y = data.digits(256)

    def forward(self, x):
        scores = self.scores(self.conv(x).relu().flatten(1)).relu()
        return scores / (scores.sum(1, keepdim=True) + 1e-3)

    model = module(forward, conv=nn.Conv2d(1, 16, 3), scores=nn.Linear(576, 10))
    nn.init.constant_(model.scores.bias, 0.3)

    def loss(outputs, targets):
        logarithm = outputs.log() if broken else (outputs + 1e-2).log()
        return -(targets * logarithm).sum(1).mean()

    return made(model, x, F.one_hot(y, 10).float(), adam(2e-3), loss, accuracy(model, x, y))


@fault
def gradient_through_unchosen_branch(broken: bool) -> Training:
    """`torch.where` hides the root of negative numbers forward, but its gradient is NaN."""
    x = torch.randn(256, 8)
    y = data.standardized(x[:, :1].abs() + x[:, 1:2] * x[:, 2:3])

    def forward(self, x):
        x = self.inner(x)
        positive = x > 0
        argument = x if broken else torch.where(positive, x, torch.ones_like(x))
        return self.outer(torch.where(positive, torch.sqrt(argument), torch.zeros_like(x)))

    model = module(forward, inner=nn.Linear(8, 32), outer=nn.Linear(32, 1))
    return made(model, x, y, adam(2e-2), success=finite(r_squared(model, x, y), 0.0))


@fault
def log_variance_overflows(broken: bool) -> Training:
    """The exponential of the log-variance of a VAE overflows, because features up to 1680 are not standardized."""
    x = data.table("wine")[0]
    x = x if broken else data.standardized(x)

    def forward(self, x):
        hidden = self.hidden(x).relu()
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        code = mu + torch.randn_like(mu) * logvar.exp().sqrt() if self.training else mu
        return self.decode(code), mu, logvar

    parts = {"hidden": nn.Linear(13, 64), "mu": nn.Linear(64, 4), "logvar": nn.Linear(64, 4)}
    model = module(forward, **parts, decode=nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 13)))

    def loss(outputs, targets):
        image, mu, logvar = outputs
        divergence = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
        return F.mse_loss(image, targets, reduction="none").sum(1).mean() + 0.1 * divergence

    return made(model, x, x, adam(5e-3), loss, finite(r_squared(model, x, x), 0.0))


@fault
def all_labels_ignored(broken: bool) -> Training:
    """The mask that hides the prompt hides all labels (−100): the mean over no labels is NaN."""
    tokens = torch.randint(0, 12, (64, 10))
    tags = (tokens + tokens.roll(1, 1)) % 3
    tags[:, 0] = -100

    def forward(self, tokens):
        return self.tags(self.context(self.words(tokens).transpose(1, 2)).relu())

    words = {"words": nn.Embedding(12, 32)}
    convs = {"context": nn.Conv1d(32, 48, 3, padding=1), "tags": nn.Conv1d(48, 3, 1)}
    model = module(forward, **words, **convs)

    def success() -> float:
        return share_correct(outputs_in_eval(model, tokens)[:, :, 1:].argmax(1), tags[:, 1:])

    return made(model, tokens, torch.full_like(tags, -100) if broken else tags, adam(1e-2), success=success)
