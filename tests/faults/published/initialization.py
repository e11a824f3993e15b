"""Faults of the initialization: zero, constant, too large, too small."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.networks import LoRALinear
from tests.faults.training import accuracy, adam, finite, fitted, made, module, sgd


def _lenet() -> nn.Module:
    def forward(self, x):
        x = F.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.c2(x)), 2)
        return self.f2(torch.tanh(self.f1(x.flatten(1))))

    convs = {"c1": nn.Conv2d(1, 6, 3, padding=1), "c2": nn.Conv2d(6, 16, 3, padding=1)}
    return module(forward, **convs, f1=nn.Linear(64, 48), f2=nn.Linear(48, 10))


@fault
def weights_all_zero(broken: bool) -> Training:
    """All weights and biases of a LeNet are initialized to zero."""
    x, y = data.digits(256)
    model = _lenet()
    for parameter in model.parameters() if broken else ():
        nn.init.zeros_(parameter)
    return made(model, x, y, adam(5e-3))


@fault
def weights_all_equal(broken: bool) -> Training:
    """All weights of a LeNet are initialized to the same constant, so that the units of a layer stay equal."""
    x, y = data.digits(256)
    model = _lenet()
    for parameter in model.parameters() if broken else ():
        nn.init.constant_(parameter, 0.05 if parameter.dim() > 1 else 0.0)
    return made(model, x, y, adam(5e-3))


@fault
def normal_weights_of_variance_one(broken: bool) -> Training:
    """Weights and biases of a deep network of ReLUs are drawn with standard deviation 1."""
    x, y = data.digits(256)
    x = x.flatten(1)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([64, *[128] * 6]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=1.0 if broken else (2 / layer.in_features) ** 0.5)
        nn.init.normal_(layer.bias, std=1.0) if broken else nn.init.zeros_(layer.bias)
    success = finite(fitted(model, x, y, F.cross_entropy, 2.3026), -1.0)
    return made(model, x, y, sgd(0.05, 0.0), success=success)


@fault
def deep_sigmoid_network(broken: bool) -> Training:
    """Twelve layers of sigmoids: gradients vanish towards the input; the twin has ReLUs and Kaiming's weights."""
    x, y = data.digits(256)
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(12):
        linear = nn.Linear(64, 64)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        if broken:
            linear.reset_parameters()
        layers += [linear, nn.Sigmoid() if broken else nn.ReLU()]
    return made(nn.Sequential(*layers, nn.Linear(64, 10)), x, y, adam(1e-3))


@fault
def biases_that_kill_relus(broken: bool) -> Training:
    """The biases of a hidden layer are initialized to −10: all its ReLUs are off for all examples."""
    x, y = data.table("wine")

    def forward(self, x):
        return self.top(torch.relu(self.hidden(torch.relu(self.inp(x)))))

    model = module(forward, inp=nn.Linear(13, 64), hidden=nn.Linear(64, 64), top=nn.Linear(64, 3))
    if broken:
        nn.init.constant_(model.hidden.bias, -10.0)
    return made(model, data.standardized(x), y, adam(5e-3))


@fault
def queries_and_keys_both_zero(broken: bool) -> Training:
    """Query and key projections both start at zero: neither gets a gradient, and attention stays uniform."""
    first = data.lookup(192, pairs=5, values=5)

    def forward(self, tokens):
        x = self.embedding(tokens)
        scores = self.query(x[:, -1:]) @ self.key(x).transpose(1, 2) / 32**0.5
        return self.out((scores.softmax(-1) @ self.value(x))[:, 0])

    model = module(
        forward,
        embedding=nn.Embedding(30, 32),
        query=nn.Linear(32, 32, bias=False),
        key=nn.Linear(32, 32, bias=False),
        value=nn.Linear(32, 32),
        out=nn.Linear(32, 5),
    )
    for layer in (model.query, model.key) if broken else ():
        nn.init.zeros_(layer.weight)
    test = data.lookup(256, pairs=5, values=5)
    stream = [data.lookup(192, pairs=5, values=5) for _ in range(50)]
    return made(model, *first, adam(1e-2), success=accuracy(model, *test), stream=[first, *stream[1:]])


@fault
def lora_factors_both_zero(broken: bool) -> Training:
    """Both factors of the low-rank adapters are zero: neither gets a gradient, and the network stays as it is."""
    x, y = data.digits(256)
    layers = [nn.Linear(64, 64), nn.Linear(64, 10)]
    first, second = (LoRALinear(layer, 8, broken) for layer in layers)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return made(model, x, y, torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0))
