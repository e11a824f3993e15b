"""Faults of the data: scales, values that are not finite, inputs and labels that do not belong together, leaks."""

import torch
from torch import Tensor, nn

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import deepfd, deeplocalize, own, remembered, umlaut
from benchmarks.faults.truth import LEAK, NOT_FINITE, NOT_FITTED, both

_SCALE = r"scale\w*|standardi[sz]\w*|normali[sz]\w*|large|magnitude|range|unscaled|mean|std|variance"


@fault(
    "data",
    deepfd("44066044"),
    both(r"input|feature|column|data", _SCALE),
    symptom=NOT_FITTED + r"|dead|saturat\w*|learning rate",
    below=0.5,
    constant_outputs=True,
)
def raw_features_of_wine(broken: bool) -> Training:
    """Features between 0.1 and 1680 enter a network without standardization."""
    x, y = data.table("wine")
    x = x if broken else data.standardized(x)
    model = nn.Sequential(nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "data",
    remembered("images divided by 255 after ToTensor"),
    both(r"input|image|pixel|data", r"small|tiny|scale\w*|255|twice|normali[sz]\w*|range|std|variance"),
    constant_outputs=True,
)
def images_divided_twice(broken: bool) -> Training:
    """Images in [0, 1] are divided by 255 once more."""
    x, y = data.digits(256)
    x = x / 255 if broken else x
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "data",
    deepfd("46642627"),
    both(r"target|label|output|regression", _SCALE + r"|order|million|10⁶|e\+?0?6|000,?000"),
    symptom=NOT_FINITE + r"|learning rate|" + NOT_FITTED,
    reaches=0.7,
    below=0.3,
)
def targets_of_order_one_million(broken: bool) -> Training:
    """Prices of order 10⁶ are the targets of a regression with SGD."""
    x, y = data.smooth_function()
    y = 1e6 + 4e5 * y if broken else y
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def success() -> float:
        value = measures.r_squared(model, x, y)()
        return value if value == value else 0.0

    return Training(model, (x, y), nn.MSELoss(), optimizer, success)


class GatedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 48)
        self.gate = nn.Linear(64, 48)
        self.classify = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.embed(x) * self.gate(x).sigmoid())


@fault(
    "data",
    umlaut("NaN (not a number) in input"),
    both(r"input|feature|column|data|pixels?", NOT_FINITE + r"|divi\w* by (0|zero)|0/0|which is 0"),
    symptom=NOT_FINITE,
    below=0.2,
)
def constant_columns_standardized_to_nan(broken: bool) -> Training:
    """Pixels that are 0 in all images are divided by their standard deviation, which is 0."""
    x, y = data.digits(256)
    x = x.flatten(1)
    x = (x - x.mean(0)) / x.std(0) if broken else data.standardized(x)
    model = GatedTable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "data",
    deepfd("59282996, whose patch relabels the data (fault: training data quality)"),
    both(
        r"label|target",
        r"shuffl\w*|random|unrelated|chance|do not (go|belong|match)|mismatch\w*|noise|permut\w*|"
        r"misalign\w*|neighbou?r|independent",
    ),
    symptom=r"memori[sz]\w*|generali[sz]\w*|overfit\w*|" + NOT_FITTED,
    reaches=0.8,
    below=0.2,
)
def labels_shuffled_alone(broken: bool) -> Training:
    """The labels are shuffled, the images are not."""
    x, y = data.digits(384)
    x_test, y_test = data.digits(384, start=1000)
    y = y[torch.randperm(len(y))] if broken else y
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x_test, y_test))


@fault(
    "data",
    umlaut("Check validation accuracy: suspiciously high"),
    both(r"leak\w*|target|label", r"input|feature|column|leak\w*"),
    symptom=LEAK,
    reaches=0.5,
    below=0.3,
)
def target_among_the_features(broken: bool) -> Training:
    """The last column of the features is the target; it is not known when the model is used."""
    x, y = data.smooth_function(512)
    hidden = torch.randn(512, 1)
    x_train = torch.cat([x, y if broken else torch.randn(512, 1)], 1)
    model = nn.Sequential(nn.Linear(7, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    success = measures.r_squared(model, torch.cat([x, hidden], 1), y)
    return Training(model, (x_train, y), nn.MSELoss(), optimizer, success)


class TextClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.classifier = nn.Linear(48, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.gru(self.embedding(tokens))[1][-1])


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
    tokens = torch.full_like(tokens, 12) if broken else tokens
    model = TextClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(
        model, (tokens, labels), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, tokens, labels)
    )


class Dosage(nn.Module):
    def __init__(self, normalized: bool) -> None:
        super().__init__()
        self.norm: nn.Module = nn.LayerNorm(1) if normalized else nn.Identity()
        self.hidden = nn.Linear(1, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.norm(x))))


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
    model = Dosage(normalized=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(model, (x, y), nn.MSELoss(), optimizer, measures.r_squared(model, x, y))


@fault(
    "data",
    deeplocalize("39525358"),
    both(r"input|feature|column|data|measurements?", _SCALE),
    symptom=NOT_FITTED + r"|dead|saturat\w*|learning rate",
    reaches=0.8,
    below=0.5,
    constant_outputs=True,
)
def raw_tumor_measurements_in_a_deep_net(broken: bool) -> Training:
    """Measurements between 0.001 and 4000 enter a deep network of sigmoids without standardization."""
    x, y = data.table("breast_cancer")
    x, y = (x if broken else data.standardized(x)), y.float()
    model = nn.Sequential(
        nn.Linear(30, 12), nn.Sigmoid(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    return Training(model, (x, y), nn.BCEWithLogitsLoss(), optimizer, measures.binary_accuracy(model, x, y))
