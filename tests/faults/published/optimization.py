"""Faults of the optimizer, and of arithmetic: rates, groups, frozen parameters, values that are not finite."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault, row
from tests.faults.networks import TinyResNet, mlp
from tests.faults.training import (
    accuracy,
    adam,
    finite,
    fit,
    made,
    module,
    outputs_in_eval,
    r_squared,
    sgd,
    share_correct,
)


@fault
def rate_too_high_for_regression(broken: bool) -> Training:
    """SGD on a regression diverges: its learning rate of 2 is too large, and 0.05 is right."""
    x, y = data.smooth_function()
    model = mlp(6, 64, 64, 1)
    return made(model, x, y, sgd(2.0 if broken else 0.05), success=finite(r_squared(model, x, y), -1.0, -1.0))


@fault
def adam_rate_of_one_tenth(broken: bool) -> Training:
    """Adam with rate 0.1 on a network of keypoints kills its ReLUs; 0.002 is right."""
    x, masks = data.scenes(64)
    x, y = F.avg_pool2d(x, 2), data.standardized(data.centers(masks)[0])
    patch = nn.Conv2d(1, 32, 2, stride=2)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    mix = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), *hidden)
    forward = lambda self, x: self.keypoints(self.mix(self.patch(x).relu()))  # noqa: E731
    return made(module(forward, patch=patch, mix=mix, keypoints=(64, 2)), x, y, adam(0.1 if broken else 2e-3))


row(
    "rate_too_low",
    "SGD with rate 10⁻⁶ hardly moves; 0.1 is right.",
    lambda broken: fit(data.table("iris"), mlp(4, 32, 3), sgd(1e-6 if broken else 0.1), guess=1.0986),
)


@fault
def group_with_rate_zero(broken: bool) -> Training:
    """The parameter group of the backbone has rate 0, left over from a warm-up of the head."""
    x, y = data.circles()
    backbone = mlp(2, 24, 3, last=[nn.Tanh()])
    model = module(lambda self, x: self.head(self.backbone(x)), backbone=backbone, head=(3, 2))
    groups = [
        {"params": model.backbone.parameters(), "lr": 0.0 if broken else 1e-2},
        {"params": model.head.parameters(), "lr": 1e-2},
    ]
    return made(model, x, y, torch.optim.AdamW(groups))


@fault
def loss_maximized(broken: bool) -> Training:
    """SGD was created with maximize=True, for a loss that is to be minimized."""
    x, y = data.waves(64, 20)
    return made(mlp(20, 32, 2, act=nn.Tanh, flat=True), x, y, sgd(0.2, maximize=broken), guess=0.6931)


@fault
def optimizer_of_a_copied_model(broken: bool) -> Training:
    """The network is copied (for a wrapper) after the optimizer was created: the optimizer moves the original."""
    convs = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten()]
    model = module(lambda self, x: self.fc(self.features(x)), features=nn.Sequential(*convs), fc=(32, 1000))
    model.fc = nn.Linear(32, 10)
    return made(copy.deepcopy(model) if broken else model, *data.digits(256), adam(1e-2)(model))


@fault
def everything_but_batch_norms_frozen(broken: bool) -> Training:
    """Freezing the backbone freezes the head as well: batch norms alone are trained."""
    model = TinyResNet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bn" in name or not broken)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return made(model, *data.digits(192), torch.optim.Adam(trained, lr=5e-3))


@fault
def weight_decay_of_one(broken: bool) -> Training:
    """Weight decay of 1 with SGD shrinks all weights to zero."""
    optimizer = sgd(0.1, weight_decay=1.0 if broken else 1e-4)
    return made(mlp(13, 32, 32, 3), *data.table("wine"), optimizer, guess=1.0986)


@fault
def adam_epsilon_of_one(broken: bool) -> Training:
    """Adam's ε of 1 outweighs the root of its second moments: updates become a thousandth."""
    optimizer = adam(1e-2, eps=1.0 if broken else 1e-8)
    return made(mlp(64, 64, 10, flat=True), *data.digits(256), optimizer, guess=2.3026)


@fault
def root_of_zero_distance(broken: bool) -> Training:
    """A distance is a square root, and some pairs are an item with itself: the gradient is 0 · ∞."""
    first, second = torch.randn(128, 12), torch.randn(128, 12)
    second[::8] = first[::8]
    y = (first[:, :3] - second[:, :3]).square().sum(1).sqrt()

    def forward(self, first, second):
        difference = self.embed(first) - self.embed(second)
        return self.scale * (difference.square().sum(1) + self.epsilon).sqrt()

    scale = nn.Parameter(torch.tensor(1.0))
    model = module(forward, embed=mlp(12, 32, 8), scale=scale, epsilon=0.0 if broken else 1e-8)
    return made(model, (first, second), y, adam(1e-2), success=finite(r_squared(model, (first, second), y), 0.0))


@fault
def logarithm_of_zero_probability(broken: bool) -> Training:
    """A hand-written cross entropy takes the logarithm of normalized ReLU scores, which can be 0."""
    x, y = data.digits(256)

    def forward(self, x):
        scores = self.scores(self.conv(x).relu().flatten(1)).relu()
        return scores / (scores.sum(1, keepdim=True) + 1e-3)

    model = module(forward, conv=nn.Conv2d(1, 16, 3), scores=(576, 10))
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

    model = module(forward, inner=(8, 32), outer=(32, 1))
    return made(model, x, y, adam(2e-2), success=finite(r_squared(model, x, y), 0.0))


@fault
def log_variance_overflows(broken: bool) -> Training:
    """The exponential of the log-variance of a VAE overflows, because features up to 1680 are not standardized."""
    x = data.table("wine", raw=broken)[0]

    def forward(self, x):
        hidden = self.hidden(x).relu()
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        code = mu + torch.randn_like(mu) * logvar.exp().sqrt() if self.training else mu
        return self.decode(code), mu, logvar

    model = module(forward, hidden=(13, 64), mu=(64, 4), logvar=(64, 4), decode=lambda: mlp(4, 64, 13))

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
    parts = {"words": nn.Embedding(12, 32), "context": nn.Conv1d(32, 48, 3, padding=1), "tags": nn.Conv1d(48, 3, 1)}
    forward = lambda self, tokens: self.tags(self.context(self.words(tokens).transpose(1, 2)).relu())  # noqa: E731
    model = module(forward, **parts)

    def success() -> float:
        return share_correct(outputs_in_eval(model, tokens)[:, :, 1:].argmax(1), tags[:, 1:])

    return made(model, tokens, torch.full_like(tags, -100) if broken else tags, adam(1e-2), success=success)
