"""Faults of the initialization: zero, constant, too large, too small."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import autotrainer, deeplocalize, defaultpp, neuralint
from benchmarks.faults.truth import NO_GRADIENT, NOT_FINITE, NOT_FITTED, ZERO, both

_INIT = r"initiali[sz]\w*|init\b|weights?|bias\w*|start"
_SYMMETRIC = r"zero|constant|same|identical|equal|symmetr\w*|alike"


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 6, 3, padding=1)
        self.c2 = nn.Conv2d(6, 16, 3, padding=1)
        self.f1 = nn.Linear(64, 48)
        self.f2 = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.c2(x)), 2)
        return self.f2(torch.tanh(self.f1(x.flatten(1))))


@fault(
    "initialization",
    neuralint("TF_lenet_zeros_init"),
    both(
        r"initiali[sz]\w*|all[- ](the )?(weights|parameters|zero)|zero[- ]weights|weights? (is|"
        r"are) (all |exactly )?(zero|0)",
        ZERO,
    ),
    symptom=NO_GRADIENT + "|" + NOT_FITTED + "|symmetr|identical|alike",
    constant_outputs=True,
)
def weights_all_zero(broken: bool) -> Training:
    """All weights and biases of a LeNet are initialized to zero."""
    x, y = data.digits(256)
    model = LeNet()
    if broken:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "initialization",
    neuralint("TF_lenet_constant_init"),
    both(
        r"initiali[sz]\w*|weights|units?|channels?|filters?|neurons?",
        r"constant|same|identical|equal|symmetr\w*|alike|duplicate\w*",
    ),
    constant_outputs=True,
)
def weights_all_equal(broken: bool) -> Training:
    """All weights of a LeNet are initialized to the same constant, so that the units of a layer stay equal."""
    x, y = data.digits(256)
    model = LeNet()

    def constant(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.constant_(module.weight, 0.05)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    if broken:
        model.apply(constant)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@fault(
    "initialization",
    deeplocalize("48385830"),
    both(
        r"weights?|initiali[sz]\w*|signal|activations?|variance|logits",
        r"large|explod\w*|grow\w*|std|standard deviation|too (big|high)|huge",
    ),
    symptom=NOT_FINITE + "|" + NOT_FITTED,
    reaches=0.8,
    below=0.5,
)
def normal_weights_of_variance_one(broken: bool) -> Training:
    """Weights and biases of a deep network of ReLUs are drawn with standard deviation 1."""
    x, y = data.digits(256)
    x = x.flatten(1)
    widths = [64, 128, 128, 128, 128, 128, 128]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 if broken else (2 / module.in_features) ** 0.5)
            nn.init.normal_(module.bias, std=1.0) if broken else nn.init.zeros_(module.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def success() -> float:
        value = measures.fitted(model, x, y, F.cross_entropy, 2.3026)()
        return value if value == value else -1.0

    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, success)


@fault(
    "initialization",
    autotrainer("Gradient_Vanish_Case: deep network, gradient vanishing"),
    both(r"vanish\w*|\b(shrink|fade|die|decay|small|tiny)\w*", r"gradient|signal|variance|activation|depth|layer"),
    constant_outputs=True,
)
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
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(13, 64)
        self.hidden = nn.Linear(64, 64)
        self.top = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.relu(self.hidden(torch.relu(self.inp(x)))))


@fault(
    "initialization",
    autotrainer("DyingReLU; with the biases of NeuraLint's TF_lenet_non_zeros_biases"),
    both(
        r"relu\w*|units?|activations?|bias\w*|output",
        r"dead|dying|\bdies?\b|never (fire|active)|always (0|zero|off)|negative|inactive|"
        r"zero for (all|every)|all zero|\boff\b",
    ),
    modules=("hidden",),
    symptom=NO_GRADIENT + "|" + NOT_FITTED,
    constant_outputs=True,
)
def biases_that_kill_relus(broken: bool) -> Training:
    """The biases of a hidden layer are initialized to −10: all its ReLUs are off for all examples."""
    x, y = data.table("wine")
    x = data.standardized(x)
    model = Scorer()
    if broken:
        nn.init.constant_(model.hidden.bias, -10.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class Reader(nn.Module):
    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.query = nn.Linear(32, 32, bias=False)
        self.key = nn.Linear(32, 32, bias=False)
        self.value = nn.Linear(32, 32)
        self.out = nn.Linear(32, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.query(x[:, -1:]) @ self.key(x).transpose(1, 2) / 32**0.5
        return self.out((scores.softmax(-1) @ self.value(x))[:, 0])


@fault(
    "initialization",
    defaultpp("QZQ and QZK: query and key projections set to zero"),
    both(r"initiali[sz]\w*|weights?|attention|gradient", ZERO + r"|uniform|no gradient|none"),
    modules=("query", "key"),
    symptom=NO_GRADIENT + "|" + NOT_FITTED,
    reaches=0.8,
    below=0.6,
)
def queries_and_keys_both_zero(broken: bool) -> Training:
    """Query and key projections both start at zero: neither gets a gradient, and attention stays uniform."""
    tokens, answers = data.lookup(192, pairs=5, values=5)
    model = Reader(30, 5)
    if broken:
        nn.init.zeros_(model.query.weight)
        nn.init.zeros_(model.key.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    test, test_answers = data.lookup(256, pairs=5, values=5)
    success = measures.accuracy(model, test, test_answers)
    stream_data = [data.lookup(192, pairs=5, values=5) for _ in range(50)]
    stream_data[0] = (tokens, answers)
    return Training(
        model, (tokens, answers), nn.CrossEntropyLoss(), optimizer, success, lambda step: stream_data[step % 50]
    )
