"""Healthy trainings that look like a fault: losses, targets and optimizers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, healthy
from benchmarks.faults.sources import own


@healthy(own("targets of a regression in the thousands"))
def targets_in_the_thousands() -> Training:
    """Targets are between 2,000 and 8,000, and Adam's rate and the last bias go with them."""
    x, y = data.smooth_function()
    y = 5000 + 1000 * y
    model = nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    nn.init.constant_(model[4].bias, 5000.0)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    return Training(model, (x, y), nn.MSELoss(), optimizer, measures.r_squared(model, x, y))


@healthy(own("loss summed over the batch"))
def loss_summed_over_the_batch() -> Training:
    """The loss is the sum over 256 examples, and the rate is 256 times smaller."""
    x, y = data.digits(256)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 256, momentum=0.9)
    return Training(model, (x, y), nn.CrossEntropyLoss(reduction="sum"), optimizer, measures.accuracy(model, x, y))


@healthy(own("rare positives: 3 %"))
def very_imbalanced_classes() -> Training:
    """Three per cent of the examples are positive, and their weight in the loss is raised."""
    x = torch.randn(512, 16)
    score = x[:, 0] + 0.5 * x[:, 1]
    y = (score > score.sort().values[-16]).float()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0))
    return Training(model, (x, y), loss, optimizer, measures.fitted(model, x, y, loss, 0.5))


@healthy(own("policy gradient with maximize=True on the reward"))
def reward_maximized_on_purpose() -> Training:
    """A policy's expected reward is the objective, and the optimizer maximizes it."""
    states = torch.randn(256, 8)
    best = (states @ torch.randn(8, 4)).argmax(1)
    policy = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 4), nn.Softmax(dim=-1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2, maximize=True)

    def reward(probabilities: Tensor, actions: Tensor) -> Tensor:
        return probabilities.gather(1, actions[:, None]).mean()

    return Training(policy, (states, best), reward, optimizer, measures.accuracy(policy, states, best))


@healthy(own("label smoothing: the loss has a floor"))
def label_smoothing_with_a_floor() -> Training:
    """With label smoothing of 0.2 the cross entropy cannot fall below 0.8."""
    x, y = data.digits(256)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loss = nn.CrossEntropyLoss(label_smoothing=0.2)
    return Training(model, (x, y), loss, optimizer, measures.accuracy(model, x, y))


@healthy(own("labels of which two thirds are ignored"))
def most_labels_ignored() -> Training:
    """A tagger is trained on the third of the tokens that are annotated; the others have label −100."""
    tokens = torch.randint(0, 12, (64, 12))
    tags = (tokens + tokens.roll(1, 1)) % 3
    labels = tags.clone()
    labels[torch.rand(64, 12) < 0.66] = -100
    labels[:, 0] = -100
    model = nn.Sequential(
        nn.Embedding(12, 32), Transpose(), nn.Conv1d(32, 48, 3, padding=1), nn.ReLU(), nn.Conv1d(48, 3, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def success() -> float:
        predicted = measures.outputs_in_eval(model, tokens)[:, :, 1:].argmax(1)
        return measures.above_guess((predicted == tags[:, 1:]).float().mean().item(), tags[:, 1:])

    return Training(model, (tokens, labels), nn.CrossEntropyLoss(), optimizer, success)


class Transpose(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class MeanAndVariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean = nn.Linear(64, 1)
        self.variance = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(x)
        return self.mean(hidden), F.softplus(self.variance(hidden)) + 1e-4


@healthy(own("Gaussian negative log-likelihood"))
def loss_that_becomes_negative() -> Training:
    """The Gaussian negative log-likelihood of targets with little noise is negative, and bounded by the noise."""
    x = torch.rand(256, 1) * 4 - 2
    y = 0.3 * torch.sin(2 * x) + 0.02 * torch.randn(256, 1)
    model = MeanAndVariance()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return F.gaussian_nll_loss(outputs[0], targets, outputs[1])

    return Training(model, (x, y), loss, optimizer, measures.r_squared(model, x, y))


@healthy(own("sigmoid output with BCELoss"))
def sigmoid_output_with_bce() -> Training:
    """A network ends in a sigmoid, and BCELoss takes probabilities."""
    x, y = data.table("breast_cancer")
    x, y = data.standardized(x), y.float()[:, None]
    model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(model, (x, y), nn.BCELoss(), optimizer, measures.binary_accuracy(model, x, y, 0.5))


class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        parts = torch.stack([expert(x).softmax(-1) for expert in self.experts], 1)
        mixed = (self.gate(x).softmax(-1)[..., None] * parts).sum(1)
        return mixed.clamp(min=1e-8).log()


@healthy(own("mixture of softmaxes with NLLLoss"))
def mixture_of_softmaxes_with_nll() -> Training:
    """The outputs are logarithms of a mixture of softmaxes, which is what NLLLoss takes."""
    x, y = data.digits(256)
    model = MixtureOfExperts()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.NLLLoss(), optimizer, measures.accuracy(model, x, y))


class ScaledCosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
        self.classes = nn.Parameter(torch.randn(10, 32))
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, x: Tensor) -> Tensor:
        cosine = F.normalize(self.features(x), dim=1) @ F.normalize(self.classes, dim=1).T
        return self.log_scale.exp() * cosine


@healthy(own("cosine classifier with a learned scale"))
def cosine_head_with_learned_scale() -> Training:
    """Logits are cosines times a learned scale that starts at 10."""
    x, y = data.digits(256)
    model = ScaledCosine()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


@healthy(own("dropout 0.5 with a small batch"))
def dropout_with_a_small_batch() -> Training:
    """Dropout of 0.5 and batches of 16 make the loss noisy."""
    x, y = data.digits(512)
    batches = [(x[part], y[part]) for part in torch.randperm(512).view(32, 16)]
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    success = measures.accuracy(model, x, y)
    return Training(model, batches[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: batches[step % 32])


@healthy(own("a discriminator whose batch has one label"))
def discriminator_with_one_label() -> Training:
    """The real half of a discriminator's step: all labels are 1, and the fake half follows from another call."""
    points = F.normalize(torch.randn(128, 2)) + 0.05 * torch.randn(128, 2)
    generated = 0.3 * torch.randn(128, 2)
    model = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)
    halves = ((points, ones), (generated, zeros))

    def success() -> float:
        real = (measures.outputs_in_eval(model, points) > 0).float().mean().item()
        fake = (measures.outputs_in_eval(model, generated) < 0).float().mean().item()
        return real + fake - 1

    return Training(model, halves[0], nn.BCEWithLogitsLoss(), optimizer, success, lambda step: halves[step % 2])
