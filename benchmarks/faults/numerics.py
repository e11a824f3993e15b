"""Faults of arithmetic: values or gradients that become infinite or NaN."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import remembered, thread
from benchmarks.faults.truth import NOT_FINITE, both


class DistanceNet(nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.epsilon = epsilon

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        difference = self.embed(first) - self.embed(second)
        return self.scale * (difference.square().sum(1) + self.epsilon).sqrt()


@fault(
    "numerics",
    remembered("gradient of sqrt at 0 in a distance"),
    both(r"sqrt|root|norm|distance|SqrtBackward", NOT_FINITE + r"|∞|at (0|zero)"),
    symptom=NOT_FINITE,
    reaches=0.7,
    below=0.2,
)
def root_of_zero_distance(broken: bool) -> Training:
    """A distance is a square root, and some pairs are an item with itself: the gradient is 0 · ∞."""
    first, second = torch.randn(128, 12), torch.randn(128, 12)
    second[::8] = first[::8]
    y = (first[:, :3] - second[:, :3]).square().sum(1).sqrt()
    model = DistanceNet(0.0 if broken else 1e-8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def success() -> float:
        value = measures.r_squared(model, (first, second), y)()
        return value if value == value else 0.0

    return Training(model, ((first, second), y), nn.MSELoss(), optimizer, success)


class RectifiedScores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.scores = nn.Linear(576, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(self.conv(x).relu().flatten(1)).relu()
        return scores / (scores.sum(1, keepdim=True) + 1e-3)


@fault(
    "numerics",
    remembered("a hand-written cross entropy with the logarithm of probabilities that can be 0"),
    both(
        r"\blog\b|logarithm|log_softmax|LogBackward",
        NOT_FINITE + r"|underflow\w*|log of (0|zero)|log\(0\)|-inf|can be (0|zero)",
    ),
    symptom=NOT_FINITE,
    reaches=0.8,
    below=0.2,
)
def logarithm_of_zero_probability(broken: bool) -> Training:
    """A hand-written cross entropy takes the logarithm of normalized ReLU scores, which can be 0."""
    x, y = data.digits(256)
    model = RectifiedScores()
    nn.init.constant_(model.scores.bias, 0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    one_hot = F.one_hot(y, 10).float()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        logarithm = outputs.log() if broken else (outputs + 1e-2).log()
        return -(targets * logarithm).sum(1).mean()

    return Training(model, (x, one_hot), loss, optimizer, measures.accuracy(model, x, y))


class LogFeatures(nn.Module):
    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.outer = nn.Linear(32, 1)
        self.safe = safe

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        positive = x > 0
        argument = torch.where(positive, x, torch.ones_like(x)) if self.safe else x
        return self.outer(torch.where(positive, torch.sqrt(argument), torch.zeros_like(x)))


@fault(
    "numerics",
    remembered("torch.where passes NaN gradients of the branch that is not chosen"),
    both(NOT_FINITE, r"where|sqrt|branch|WhereBackward|SqrtBackward|root"),
    symptom=NOT_FINITE,
    reaches=0.7,
    below=0.2,
)
def gradient_through_unchosen_branch(broken: bool) -> Training:
    """`torch.where` hides the root of negative numbers forward, but its gradient is NaN."""
    x = torch.randn(256, 8)
    y = data.standardized(x[:, :1].abs() + x[:, 1:2] * x[:, 2:3])
    model = LogFeatures(safe=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)

    def success() -> float:
        value = measures.r_squared(model, x, y)()
        return value if value == value else 0.0

    return Training(model, (x, y), nn.MSELoss(), optimizer, success)


class WideVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(13, 64)
        self.mu = nn.Linear(64, 4)
        self.logvar = nn.Linear(64, 4)
        self.decode = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 13))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.hidden(x).relu()
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        code = mu + torch.randn_like(mu) * logvar.exp().sqrt() if self.training else mu
        return self.decode(code), mu, logvar


@fault(
    "numerics",
    thread("logvar.exp() goes to infinity", "https://www.codegenes.net/blog/logvarexp-goes-to-infinity-pytorch"),
    both(NOT_FINITE, r"exp\b|exponential|logvar|variance|ExpBackward|overflow\w*"),
    modules=("logvar", "exp"),
    symptom=NOT_FINITE + "|scale|large",
    reaches=0.5,
    below=0.2,
)
def log_variance_overflows(broken: bool) -> Training:
    """The exponential of the log-variance of a VAE overflows, because features up to 1680 are not standardized."""
    x = data.table("wine")[0]
    x = x if broken else data.standardized(x)
    model = WideVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        image, mu, logvar = outputs
        divergence = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
        return F.mse_loss(image, targets, reduction="none").sum(1).mean() + 0.1 * divergence

    def success() -> float:
        value = measures.r_squared(model, x, x)()
        return value if value == value else 0.0

    return Training(model, (x, x), loss, optimizer, success)


class Labeller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 32)
        self.context = nn.Conv1d(32, 48, 3, padding=1)
        self.tags = nn.Conv1d(48, 3, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tags(self.context(self.words(tokens).transpose(1, 2)).relu())


@fault(
    "numerics",
    remembered("loss is nan because all labels are -100"),
    both(r"label|target|ignor\w*|-100", r"ignor\w*|-100|all|every|no (label|target)|empty|none"),
    symptom=NOT_FINITE,
    reaches=0.8,
    below=0.2,
)
def all_labels_ignored(broken: bool) -> Training:
    """The mask that hides the prompt hides all labels (−100): the mean over no labels is NaN."""
    tokens = torch.randint(0, 12, (64, 10))
    tags = (tokens + tokens.roll(1, 1)) % 3
    tags[:, 0] = -100
    labels = torch.full_like(tags, -100) if broken else tags
    model = Labeller()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def success() -> float:
        predicted = measures.outputs_in_eval(model, tokens)[:, :, 1:].argmax(1)
        return measures.above_guess((predicted == tags[:, 1:]).float().mean().item(), tags[:, 1:])

    return Training(model, (tokens, labels), nn.CrossEntropyLoss(), optimizer, success)
