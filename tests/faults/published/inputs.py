"""Faults of the data: scales, values that are not finite, inputs and labels that do not belong together, leaks."""

import torch
from torch import nn

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.sources import deepfd, deeplocalize, own, remembered, umlaut
from tests.faults.training import accuracy, adam, adamw, binary_accuracy, finite, made, module, r_squared, sgd
from tests.faults.truth import LEAK, NOT_FINITE, NOT_FITTED, both

_SCALE = r"scale\w*|standardi[sz]\w*|normali[sz]\w*|large|magnitude|range|unscaled|mean|std|variance"


@fault(
    "data",
    deepfd("44066044"),
    both(r"input|feature|column|data", _SCALE),
    NOT_FITTED + r"|dead|saturat\w*|learning rate",
    bars=(0.9, 0.5),
    constant_outputs=True,
)
def raw_features_of_wine(broken: bool) -> Training:
    """Features between 0.1 and 1680 enter a network without standardization."""
    x, y = data.table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))
    return made(model, x if broken else data.standardized(x), y, sgd(0.1))


@fault(
    "data",
    remembered("images divided by 255 after ToTensor"),
    both(r"input|image|pixel|data", r"small|tiny|scale\w*|255|twice|normali[sz]\w*|range|std|variance"),
    constant_outputs=True,
)
def images_divided_twice(broken: bool) -> Training:
    """Images in [0, 1] are divided by 255 once more."""
    x, y = data.digits(256)
    convs = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(144, 10))
    return made(model, x / 255 if broken else x, y, sgd(0.1))


@fault(
    "data",
    deepfd("46642627"),
    both(r"target|label|output|regression", _SCALE + r"|order|million|10⁶|e\+?0?6|000,?000"),
    NOT_FINITE + r"|learning rate|" + NOT_FITTED,
    bars=(0.7, 0.3),
)
def targets_of_order_one_million(broken: bool) -> Training:
    """Prices of order 10⁶ are the targets of a regression with SGD."""
    x, y = data.smooth_function()
    y = 1e6 + 4e5 * y if broken else y
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return made(model, x, y, sgd(0.05), success=finite(r_squared(model, x, y), 0.0))


@fault(
    "data",
    umlaut("NaN (not a number) in input"),
    both(r"input|feature|column|data|pixels?", NOT_FINITE + r"|divi\w* by (0|zero)|0/0|which is 0"),
    NOT_FINITE,
    bars=(0.9, 0.2),
)
def constant_columns_standardized_to_nan(broken: bool) -> Training:
    """Pixels that are 0 in all images are divided by their standard deviation, which is 0."""
    x, y = data.digits(256)
    x = x.flatten(1)
    x = (x - x.mean(0)) / x.std(0) if broken else data.standardized(x)

    def forward(self, x):
        return self.classify(self.embed(x) * self.gate(x).sigmoid())

    model = module(forward, embed=nn.Linear(64, 48), gate=nn.Linear(64, 48), classify=nn.Linear(48, 10))
    return made(model, x, y, adamw(5e-3))


@fault(
    "data",
    deepfd("59282996, whose patch relabels the data (fault: training data quality)"),
    both(
        r"label|target",
        r"shuffl\w*|random|unrelated|chance|do not (go|belong|match)|mismatch\w*|noise|permut\w*|"
        r"misalign\w*|neighbou?r|independent",
    ),
    r"memori[sz]\w*|generali[sz]\w*|overfit\w*|" + NOT_FITTED,
    bars=(0.8, 0.2),
)
def labels_shuffled_alone(broken: bool) -> Training:
    """The labels are shuffled, the images are not."""
    x, y = data.digits(384)
    y = y[torch.randperm(len(y))] if broken else y
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return made(model, x, y, adam(5e-3), success=accuracy(model, *data.digits(384, start=1000)))


@fault(
    "data",
    umlaut("Check validation accuracy: suspiciously high"),
    both(r"leak\w*|target|label", r"input|feature|column|leak\w*"),
    LEAK,
    bars=(0.5, 0.3),
)
def target_among_the_features(broken: bool) -> Training:
    """The last column of the features is the target; it is not known when the model is used."""
    x, y = data.smooth_function(512)
    hidden = torch.randn(512, 1)
    x_train = torch.cat([x, y if broken else torch.randn(512, 1)], 1)
    model = nn.Sequential(nn.Linear(7, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    return made(model, x_train, y, adamw(5e-3), success=r_squared(model, torch.cat([x, hidden], 1), y))


@fault(
    "data",
    remembered("vocabulary of lower-case words, text in capitals: every token is unknown"),
    both(
        r"input|token|example|batch|embedding|sequence",
        r"same|identical|constant|equal|alike|unknown|one (value|token)|duplicate\w*|no information",
    ),
    constant_outputs=True,
)
def every_token_unknown(broken: bool) -> Training:
    """All words are missing from the vocabulary, so that every sequence is the same row of unknown tokens."""
    tokens, labels = data.first_of_two(128, length=8)

    def forward(self, tokens):
        return self.classifier(self.gru(self.embedding(tokens))[1][-1])

    gru = {"embedding": nn.Embedding(13, 24), "gru": nn.GRU(24, 48, batch_first=True)}
    model = module(forward, **gru, classifier=nn.Linear(48, 2))
    return made(model, torch.full_like(tokens, 12) if broken else tokens, labels, adam(1e-2))


@fault(
    "data",
    own("LayerNorm over a single feature"),
    both(
        r"norm\w*",
        r"constant|one (feature|channel|element)|single|removes?|zero|same|independent|no information|"
        r"does not depend|1 (feature|element)",
    ),
    modules=("norm",),
    constant_outputs=True,
)
def layer_norm_over_one_feature(broken: bool) -> Training:
    """A layer norm over one feature returns 0 for every input."""
    x = torch.rand(256, 1) * 6 - 3
    y = torch.sin(2 * x) + 0.05 * torch.randn(256, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.norm(x))))

    norm = nn.LayerNorm(1) if broken else nn.Identity()
    return made(module(forward, norm=norm, hidden=nn.Linear(1, 64), out=nn.Linear(64, 1)), x, y, adam(1e-2))


@fault(
    "data",
    deeplocalize("39525358"),
    both(r"input|feature|column|data|measurements?", _SCALE),
    NOT_FITTED + r"|dead|saturat\w*|learning rate",
    bars=(0.8, 0.5),
    constant_outputs=True,
)
def raw_tumor_measurements_in_a_deep_net(broken: bool) -> Training:
    """Measurements between 0.001 and 4000 enter a deep network of sigmoids without standardization."""
    x, y = data.table("breast_cancer")
    x, y = (x if broken else data.standardized(x)), y.float()
    layers = [nn.Linear(30, 12), nn.Sigmoid(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)]
    model = nn.Sequential(*layers)
    return made(model, x, y, adam(2e-2), nn.BCEWithLogitsLoss(), binary_accuracy(model, x, y))
