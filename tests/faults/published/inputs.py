"""Faults of the data: scales, values that are not finite, inputs and labels that do not belong together, leaks."""

import torch
from torch import nn

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.training import accuracy, adam, adamw, binary_accuracy, finite, made, module, r_squared, sgd


@fault
def raw_features_of_wine(broken: bool) -> Training:
    """Features between 0.1 and 1680 enter a network without standardization."""
    x, y = data.table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))
    return made(model, x if broken else data.standardized(x), y, sgd(0.1))


@fault
def images_divided_twice(broken: bool) -> Training:
    """Images in [0, 1] are divided by 255 once more."""
    x, y = data.digits(256)
    convs = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(144, 10))
    return made(model, x / 255 if broken else x, y, sgd(0.1))


@fault
def targets_of_order_one_million(broken: bool) -> Training:
    """Prices of order 10⁶ are the targets of a regression with SGD."""
    x, y = data.smooth_function()
    y = 1e6 + 4e5 * y if broken else y
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return made(model, x, y, sgd(0.05), success=finite(r_squared(model, x, y), 0.0))


@fault
def constant_columns_standardized_to_nan(broken: bool) -> Training:
    """Pixels that are 0 in all images are divided by their standard deviation, which is 0."""
    x, y = data.digits(256)
    x = x.flatten(1)
    x = (x - x.mean(0)) / x.std(0) if broken else data.standardized(x)

    def forward(self, x):
        return self.classify(self.embed(x) * self.gate(x).sigmoid())

    model = module(forward, embed=nn.Linear(64, 48), gate=nn.Linear(64, 48), classify=nn.Linear(48, 10))
    return made(model, x, y, adamw(5e-3))


@fault
def labels_shuffled_alone(broken: bool) -> Training:
    """The labels are shuffled, the images are not."""
    x, y = data.digits(384)
    y = y[torch.randperm(len(y))] if broken else y
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return made(model, x, y, adam(5e-3), success=accuracy(model, *data.digits(384, start=1000)))


@fault
def target_among_the_features(broken: bool) -> Training:
    """The last column of the features is the target; it is not known when the model is used."""
    x, y = data.smooth_function(512)
    hidden = torch.randn(512, 1)
    x_train = torch.cat([x, y if broken else torch.randn(512, 1)], 1)
    model = nn.Sequential(nn.Linear(7, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    return made(model, x_train, y, adamw(5e-3), success=r_squared(model, torch.cat([x, hidden], 1), y))


@fault
def every_token_unknown(broken: bool) -> Training:
    """All words are missing from the vocabulary, so that every sequence is the same row of unknown tokens."""
    tokens, labels = data.first_of_two(128, length=8)

    def forward(self, tokens):
        return self.classifier(self.gru(self.embedding(tokens))[1][-1])

    gru = {"embedding": nn.Embedding(13, 24), "gru": nn.GRU(24, 48, batch_first=True)}
    model = module(forward, **gru, classifier=nn.Linear(48, 2))
    return made(model, torch.full_like(tokens, 12) if broken else tokens, labels, adam(1e-2))


@fault
def layer_norm_over_one_feature(broken: bool) -> Training:
    """A layer norm over one feature returns 0 for every input."""
    x = torch.rand(256, 1) * 6 - 3
    y = torch.sin(2 * x) + 0.05 * torch.randn(256, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.norm(x))))

    norm = nn.LayerNorm(1) if broken else nn.Identity()
    return made(module(forward, norm=norm, hidden=nn.Linear(1, 64), out=nn.Linear(64, 1)), x, y, adam(1e-2))


@fault
def raw_tumor_measurements_in_a_deep_net(broken: bool) -> Training:
    """Measurements between 0.001 and 4000 enter a deep network of sigmoids without standardization."""
    x, y = data.table("breast_cancer")
    x, y = (x if broken else data.standardized(x)), y.float()
    layers = [nn.Linear(30, 12), nn.Sigmoid(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)]
    model = nn.Sequential(*layers)
    return made(model, x, y, adam(2e-2), nn.BCEWithLogitsLoss(), binary_accuracy(model, x, y))
