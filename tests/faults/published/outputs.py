"""Faults of the last layer: activations that do not go with the loss or with the range of the targets."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.training import accuracy, adam, binary_accuracy, made, module


@fault
def softmax_before_cross_entropy(broken: bool) -> Training:
    """A convolutional network returns softmax probabilities to a loss that applies the softmax itself."""
    x, y = data.digits(256)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return F.softmax(x, dim=1) if broken else x

    convs = {"conv1": nn.Conv2d(1, 16, 3, padding=1), "conv2": nn.Conv2d(16, 32, 3, padding=1)}
    model = module(forward, **convs, fc1=nn.Linear(32 * 4, 64), fc2=nn.Linear(64, 10))
    return made(model, x, y, adam(2e-3), guess=2.3026)


@fault
def softmax_over_one_output(broken: bool) -> Training:
    """A binary classifier applies softmax to its one output, which is then always 1."""
    x, y = data.table("breast_cancer")
    x, y = data.standardized(x), y.float()[:, None]
    head = nn.Softmax(dim=1) if broken else nn.Sigmoid()
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1), head)
    return made(model, x, y, adam(5e-3), nn.BCELoss(), binary_accuracy(model, x, y, 0.5))


@fault
def sigmoid_output_for_large_targets(broken: bool) -> Training:
    """A regression whose targets are between 25 and 346 ends in a sigmoid."""
    x, y = data.table("diabetes")
    x, y = data.standardized(x), y.float()[:, None]
    layers = [nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)]
    return made(nn.Sequential(*layers, *[nn.Sigmoid()] * broken), x, y, adam(1e-2))


@fault
def relu_output_of_autoencoder(broken: bool) -> Training:
    """An autoencoder of standardized features ends in a ReLU, and half of what it must return is negative."""
    x = data.standardized(data.table("wine")[0])

    def forward(self, x):
        x = self.decoder(self.encoder(x))
        return torch.relu(x) if broken else x

    encoder = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 8))
    model = module(forward, encoder=encoder, decoder=nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 13)))
    return made(model, x, x, adam(1e-2))


@fault
def sigmoid_before_bce_with_logits(broken: bool) -> Training:
    """A multi-label classifier returns sigmoids to a loss that applies the sigmoid itself."""
    x = torch.randn(256, 20)
    y = ((x @ torch.randn(20, 5)) > 2.0).float()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5), *[nn.Sigmoid()] * broken)
    return made(model, x, y, adam(1e-2), nn.BCEWithLogitsLoss(), guess=0.64)


@fault
def cosine_logits_without_scale(broken: bool) -> Training:
    """The logits are cosines, at most 1, so that the cross entropy cannot come near 0."""
    x, y = data.digits(256)

    def forward(self, x):
        return self.scale * F.normalize(self.backbone(x), dim=1) @ F.normalize(self.prototypes, dim=1).T

    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    prototypes = nn.Parameter(torch.randn(10, 32))
    model = module(forward, backbone=backbone, prototypes=prototypes, scale=1.0 if broken else 16.0)
    return made(model, x, y, adam(5e-3), guess=2.3026)


@fault
def output_clamped_above_its_start(broken: bool) -> Training:
    """Predictions start near 0 and are clamped to at least 5, where the clamp has no gradient."""
    x, y = data.smooth_function()

    def forward(self, x):
        price = self.price(self.body(x)).squeeze(-1)
        return price.clamp(min=5.0) if broken else price

    body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    return made(module(forward, body=body, price=nn.Linear(64, 1)), x, y[:, 0] + 7.0, adam(1e-2))


@fault
def cross_entropy_over_one_logit(broken: bool) -> Training:
    """A three-class problem gets one logit, and labels that are the argmax over one column: both are always 0."""
    x, labels = data.table("iris")
    x = data.standardized(x)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1 if broken else 3))
    y = labels[:, None].float().argmax(1) if broken else labels
    return made(model, x, y, adam(5e-3, torch.optim.RMSprop), success=accuracy(model, x, labels))
