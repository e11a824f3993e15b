"""Faults of the data and of initial values: scales, values that do not belong together, zeros, constants."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault, row
from tests.faults.networks import LoRALinear, mlp
from tests.faults.training import (
    accuracy,
    adam,
    adamw,
    binary_accuracy,
    finite,
    fit,
    fitted,
    made,
    module,
    r_squared,
    sgd,
)

row(
    "raw_features_of_wine",
    "Features between 0.1 and 1680 enter a network without standardization.",
    lambda broken: fit(data.table("wine", raw=broken), mlp(13, 32, 16, 3, act=nn.Tanh), sgd(0.1)),
)


@fault
def images_divided_twice(broken: bool) -> Training:
    """Images in [0, 1] are divided by 255 once more."""
    x, y = data.digits(256)
    convs = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()]
    return made(nn.Sequential(*convs, nn.Flatten(), nn.Linear(144, 10)), x / 255 if broken else x, y, sgd(0.1))


@fault
def targets_of_order_one_million(broken: bool) -> Training:
    """Prices of order 10⁶ are the targets of a regression with SGD."""
    x, y = data.smooth_function()
    y = 1e6 + 4e5 * y if broken else y
    model = mlp(6, 64, 64, 1)
    return made(model, x, y, sgd(0.05), success=finite(r_squared(model, x, y), 0.0))


@fault
def constant_columns_standardized_to_nan(broken: bool) -> Training:
    """Pixels that are 0 in all images are divided by their standard deviation, which is 0."""
    x, y = data.digits(256)
    x = x.flatten(1)
    x = (x - x.mean(0)) / x.std(0) if broken else data.standardized(x)
    forward = lambda self, x: self.classify(self.embed(x) * self.gate(x).sigmoid())  # noqa: E731
    return made(module(forward, embed=(64, 48), gate=(64, 48), classify=(48, 10)), x, y, adamw(5e-3))


@fault
def labels_shuffled_alone(broken: bool) -> Training:
    """The labels are shuffled, the images are not."""
    x, y = data.digits(384)
    y = y[torch.randperm(len(y))] if broken else y
    model = mlp(64, 48, 10, flat=True)
    return made(model, x, y, adam(5e-3), success=accuracy(model, *data.digits(384, start=1000)))


@fault
def target_among_the_features(broken: bool) -> Training:
    """The last column of the features is the target; it is not known when the model is used."""
    x, y = data.smooth_function(512)
    hidden = torch.randn(512, 1)
    x_train = torch.cat([x, y if broken else torch.randn(512, 1)], 1)
    model = mlp(7, 64, 64, 1, act=nn.SiLU)
    return made(model, x_train, y, adamw(5e-3), success=r_squared(model, torch.cat([x, hidden], 1), y))


@fault
def every_token_unknown(broken: bool) -> Training:
    """All words are missing from the vocabulary, so that every sequence is the same row of unknown tokens."""
    tokens, labels = data.first_of_two(128, length=8)
    gru = {"embedding": nn.Embedding(13, 24), "gru": nn.GRU(24, 48, batch_first=True)}
    model = module(lambda self, x: self.classifier(self.gru(self.embedding(x))[1][-1]), **gru, classifier=(48, 2))
    return made(model, torch.full_like(tokens, 12) if broken else tokens, labels, adam(1e-2))


@fault
def layer_norm_over_one_feature(broken: bool) -> Training:
    """A layer norm over one feature returns 0 for every input."""
    x = torch.rand(256, 1) * 6 - 3
    y = torch.sin(2 * x) + 0.05 * torch.randn(256, 1)
    forward = lambda self, x: self.out(torch.tanh(self.hidden(self.norm(x))))  # noqa: E731
    norm = nn.LayerNorm(1) if broken else nn.Identity()
    return made(module(forward, norm=norm, hidden=(1, 64), out=(64, 1)), x, y, adam(1e-2))


@fault
def raw_tumor_measurements_in_a_deep_net(broken: bool) -> Training:
    """Measurements between 0.001 and 4000 enter a deep network of sigmoids without standardization."""
    x, y = data.tumors(raw=broken)
    layers = [nn.Linear(30, 12), nn.Sigmoid(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)]
    model = nn.Sequential(*layers)
    return made(model, x, y, adam(2e-2), nn.BCEWithLogitsLoss(), binary_accuracy(model, x, y))


def _lenet() -> nn.Module:
    def forward(self, x):
        x = F.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.c2(x)), 2)
        return self.f2(torch.tanh(self.f1(x.flatten(1))))

    convs = {"c1": nn.Conv2d(1, 6, 3, padding=1), "c2": nn.Conv2d(6, 16, 3, padding=1)}
    return module(forward, **convs, f1=(64, 48), f2=(48, 10))


@fault
def weights_all_zero(broken: bool) -> Training:
    """All weights and biases of a LeNet are initialized to zero."""
    model = _lenet()
    for parameter in model.parameters() if broken else ():
        nn.init.zeros_(parameter)
    return made(model, *data.digits(256), adam(5e-3))


@fault
def weights_all_equal(broken: bool) -> Training:
    """All weights of a LeNet are initialized to the same constant, so that the units of a layer stay equal."""
    model = _lenet()
    for parameter in model.parameters() if broken else ():
        nn.init.constant_(parameter, 0.05 if parameter.dim() > 1 else 0.0)
    return made(model, *data.digits(256), adam(5e-3))


@fault
def normal_weights_of_variance_one(broken: bool) -> Training:
    """Weights and biases of a deep network of ReLUs are drawn with standard deviation 1."""
    x, y = data.digits(256)
    model = mlp(64, *[128] * 6, 10)
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=1.0 if broken else (2 / layer.in_features) ** 0.5)
        nn.init.normal_(layer.bias, std=1.0) if broken else nn.init.zeros_(layer.bias)
    success = finite(fitted(model, x.flatten(1), y, F.cross_entropy, 2.3026), -1.0)
    return made(model, x.flatten(1), y, sgd(0.05, 0.0), success=success)


@fault
def deep_sigmoid_network(broken: bool) -> Training:
    """Twelve layers of sigmoids: gradients vanish towards the input; the twin has ReLUs and Kaiming's weights."""
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(12):
        linear = nn.Linear(64, 64)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        if broken:
            linear.reset_parameters()
        layers += [linear, nn.Sigmoid() if broken else nn.ReLU()]
    return made(nn.Sequential(*layers, nn.Linear(64, 10)), *data.digits(256), adam(1e-3))


@fault
def biases_that_kill_relus(broken: bool) -> Training:
    """The biases of a hidden layer are initialized to −10: all its ReLUs are off for all examples."""
    forward = lambda self, x: self.top(torch.relu(self.hidden(torch.relu(self.inp(x)))))  # noqa: E731
    model = module(forward, inp=(13, 64), hidden=(64, 64), top=(64, 3))
    if broken:
        nn.init.constant_(model.hidden.bias, -10.0)
    return made(model, *data.table("wine"), adam(5e-3))


@fault
def queries_and_keys_both_zero(broken: bool) -> Training:
    """Query and key projections both start at zero: neither gets a gradient, and attention stays uniform."""
    first = data.lookup(192, pairs=5, values=5)

    def forward(self, tokens):
        x = self.embedding(tokens)
        scores = self.query(x[:, -1:]) @ self.key(x).transpose(1, 2) / 32**0.5
        return self.out((scores.softmax(-1) @ self.value(x))[:, 0])

    parts = {"embedding": nn.Embedding(30, 32), **{name: nn.Linear(32, 32, bias=False) for name in ("query", "key")}}
    model = module(forward, **parts, value=(32, 32), out=(32, 5))
    for layer in (model.query, model.key) if broken else ():
        nn.init.zeros_(layer.weight)
    test, *others = (data.lookup(count, pairs=5, values=5) for count in (256, *[192] * 50))
    return made(model, *first, adam(1e-2), success=accuracy(model, *test), stream=[first, *others[1:]])


@fault
def lora_factors_both_zero(broken: bool) -> Training:
    """Both factors of the low-rank adapters are zero: neither gets a gradient, and the network stays as it is."""
    layers = [nn.Linear(64, 64), nn.Linear(64, 10)]
    first, second = (LoRALinear(layer, 8, broken) for layer in layers)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return made(model, *data.digits(256), torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0))
