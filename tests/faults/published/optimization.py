"""Faults of the optimizer: rates, groups, directions, parameters that are frozen or not its own."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.networks import TinyResNet
from tests.faults.training import adam, finite, made, module, r_squared, sgd


@fault
def rate_too_high_for_regression(broken: bool) -> Training:
    """SGD on a regression diverges: its learning rate of 2 is too large, and 0.05 is right."""
    x, y = data.smooth_function()
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return made(model, x, y, sgd(2.0 if broken else 0.05), success=finite(r_squared(model, x, y), -1.0, -1.0))


@fault
def adam_rate_of_one_tenth(broken: bool) -> Training:
    """Adam with rate 0.1 on a network of keypoints kills its ReLUs; 0.002 is right."""
    x, masks = data.scenes(64, size=8 + 8)
    x, y = F.avg_pool2d(x, 2), data.standardized(data.centers(masks)[0])

    def forward(self, x):
        return self.keypoints(self.mix(self.patch(x).relu()))

    patch = nn.Conv2d(1, 32, 2, stride=2)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    mix = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), *hidden)
    model = module(forward, patch=patch, mix=mix, keypoints=nn.Linear(64, 2))
    return made(model, x, y, adam(0.1 if broken else 2e-3))


@fault
def rate_too_low(broken: bool) -> Training:
    """SGD with rate 10⁻⁶ hardly moves; 0.1 is right."""
    x, y = data.table("iris")
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    return made(model, data.standardized(x), y, sgd(1e-6 if broken else 0.1), guess=1.0986)


@fault
def group_with_rate_zero(broken: bool) -> Training:
    """The parameter group of the backbone has rate 0, left over from a warm-up of the head."""
    x, y = data.circles()

    def forward(self, x):
        return self.head(self.backbone(x))

    backbone = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 3), nn.Tanh())
    model = module(forward, backbone=backbone, head=nn.Linear(3, 2))
    groups = [
        {"params": model.backbone.parameters(), "lr": 0.0 if broken else 1e-2},
        {"params": model.head.parameters(), "lr": 1e-2},
    ]
    return made(model, x, y, torch.optim.AdamW(groups))


@fault
def loss_maximized(broken: bool) -> Training:
    """SGD was created with maximize=True, for a loss that is to be minimized."""
    x, y = data.waves(64, 20)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
    return made(model, x, y, sgd(0.2, maximize=broken), guess=0.6931)


@fault
def optimizer_of_a_copied_model(broken: bool) -> Training:
    """The network is copied (for a wrapper) after the optimizer was created: the optimizer moves the original."""
    x, y = data.digits(256)

    def forward(self, x):
        return self.fc(self.features(x))

    convs = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten()]
    model = module(forward, features=nn.Sequential(*convs), fc=nn.Linear(32, 1000))
    model.fc = nn.Linear(32, 10)
    trained = copy.deepcopy(model) if broken else model
    return made(trained, x, y, adam(1e-2)(model))


@fault
def everything_but_batch_norms_frozen(broken: bool) -> Training:
    """Freezing the backbone freezes the head as well: batch norms alone are trained."""
    x, y = data.digits(192)
    model = TinyResNet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bn" in name or not broken)
    return made(model, x, y, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3))


@fault
def weight_decay_of_one(broken: bool) -> Training:
    """Weight decay of 1 with SGD shrinks all weights to zero."""
    x, y = data.table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    return made(model, data.standardized(x), y, sgd(0.1, weight_decay=1.0 if broken else 1e-4), guess=1.0986)


@fault
def adam_epsilon_of_one(broken: bool) -> Training:
    """Adam's ε of 1 outweighs the root of its second moments: updates become a thousandth."""
    x, y = data.digits(256)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return made(model, x, y, adam(1e-2, eps=1.0 if broken else 1e-8), guess=2.3026)
