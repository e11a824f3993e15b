"""Losses of torch whose arguments do not mean what the loss takes, beside the right call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]
torch.manual_seed(0)
N, K = 64, 6
LABELS = torch.arange(N) % K
HOT = (torch.randn(N, K) > 0).float()
TEACHER = torch.randn(N, K)
RARE = torch.tensor([0] * 40 + [1] * 8 + [2] * 6 + [3] * 4 + [4] * 4 + [5] * 2)
COUNTS = torch.bincount(RARE).float()
KEPT = (torch.arange(N * K) % 30 == 0).float().view(N, K)


def divergence(given: Callable[[Tensor], Tensor], target: Callable[[Tensor], Tensor], **options: bool) -> Loss:
    return lambda o, t: F.kl_div(given(o), target(t), reduction="batchmean", **options)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


def log_softmax(x: Tensor) -> Tensor:
    return x.log_softmax(1)


# For each kind the wrong loss and targets, and the right ones.
ARGUMENTS: dict[str, tuple[str, tuple[Loss, Tensor], tuple[Loss, Tensor]]] = {
    "signs": (
        "targets_out_of_range",
        (F.soft_margin_loss, HOT),
        (F.soft_margin_loss, 2 * HOT - 1),
    ),
    "masks of 255": (
        "targets_out_of_range",
        (F.binary_cross_entropy_with_logits, 255 * HOT),
        (F.binary_cross_entropy_with_logits, HOT),
    ),
    "a softmax for several labels": (
        "competing_outputs",
        (lambda o, t: F.binary_cross_entropy(o.softmax(1), t), HOT),
        (lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), HOT),
    ),
    "probabilities in nll_loss": (
        "logits_as_logarithms",
        (lambda o, t: F.nll_loss(o.softmax(1), t), LABELS),
        (lambda o, t: F.nll_loss((o.softmax(1) + 1e-9).log(), t), LABELS),
    ),
    "a softmax over the examples": (
        "normalized_over_wrong_axis",
        (lambda o, t: F.nll_loss(o.log_softmax(0), t), LABELS),
        (lambda o, t: F.nll_loss(o.log_softmax(1), t), LABELS),
    ),
    "probabilities in kl_div": (
        "logits_as_logarithms",
        (divergence(softmax, softmax), TEACHER),
        (divergence(log_softmax, softmax), TEACHER),
    ),
    "log-probabilities as targets": (
        "targets_of_divergence",
        (divergence(log_softmax, log_softmax), TEACHER),
        (divergence(log_softmax, log_softmax, log_target=True), TEACHER),
    ),
    "exchanged arguments": (
        "exchanged_arguments",
        (lambda o, t: F.kl_div(log_softmax(t), softmax(o), reduction="batchmean"), TEACHER),
        (lambda o, t: F.kl_div(log_softmax(o), softmax(t), reduction="batchmean"), TEACHER),
    ),
    "logits as targets": (
        "not_distributions",
        (F.cross_entropy, TEACHER),
        (F.cross_entropy, TEACHER.softmax(1)),
    ),
    "several labels for each example": (
        "not_distributions",
        (F.cross_entropy, HOT),
        (nn.CrossEntropyLoss(label_smoothing=0.1), F.one_hot(LABELS, K).float()),
    ),
    "an index that is a class": (
        "ignored_class",
        (partial(F.cross_entropy, ignore_index=0), LABELS),
        (partial(F.cross_entropy, ignore_index=-1), LABELS - (LABELS == 0).long() * 0),
    ),
    "a weight of zero": (
        "ignored_class",
        (nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1, 1, 1, 1, 1])), LABELS),
        (nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1, 1, 1, 1, 1])), LABELS),
    ),
    "weights in proportion": (
        "reversed_weights",
        (nn.CrossEntropyLoss(weight=COUNTS / COUNTS.mean()), RARE),
        (nn.CrossEntropyLoss(weight=COUNTS.mean() / COUNTS), RARE),
    ),
    "a matrix of labels": (
        "multi_hot_targets",
        (F.multilabel_margin_loss, HOT.long()),
        (F.multilabel_margin_loss, torch.cat([LABELS[:, None], torch.full((N, K - 1), -1)], 1)),
    ),
    "a mean over the mask": (
        "masked_mean",
        (lambda o, t: ((o - t).square() * KEPT).mean(), TEACHER),
        (lambda o, t: ((o - t).square() * KEPT).sum() / KEPT.sum(), TEACHER),
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_losses(name: str) -> None:
    torch.manual_seed(0)
    kind, wrong, right = ARGUMENTS[name]
    model, x = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, K)), torch.randn(N, 12)
    assert kinds(diagnose(model, (x, wrong[1]), loss=wrong[0]))[:1] == [kind]
    assert not kinds(diagnose(model, (x, right[1]), loss=right[0]))


class Tagger(nn.Module):
    """Classes of each of as many positions as there are classes; on the last axis, or on axis 1."""

    def __init__(self, last: bool, tokens: int = 20) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(tokens, 16), nn.GRU(16, 16, batch_first=True)
        self.head, self.last = nn.Linear(16, K), last

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.rnn(self.embed(x))[0])
        return y if self.last else y.transpose(1, 2)


def test_classes_on_an_axis_of_the_same_length() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(20, (32, K))
    found = diagnose(Tagger(last=True), (tokens, tokens % K)).findings
    assert (found[0].kind, found[0].where) == ("classes_on_last_axis", ("head",))
    assert not kinds(diagnose(Tagger(last=False), (tokens, tokens % K)))


@pytest.mark.parametrize("form", ["a class", "the end of sequences", "a token that is read"])
def test_an_ignored_index_of_sequences(form: str) -> None:
    """Padding is no class: it ends the sequences, or it stands where a single token is read."""
    torch.manual_seed(0)
    tokens = torch.randint(6, 20, (32, 9))
    labels = tokens % K
    if form == "the end of sequences":
        labels[:, 5:] = 0
        labels[:, :5].clamp_(min=1)
    elif form == "a token that is read":
        labels = torch.where(tokens % 3 == 0, 0, tokens % (K - 1) + 1)
        tokens[labels == 0] = 0
    found = kinds(diagnose(Tagger(last=False), (tokens, labels), loss=nn.CrossEntropyLoss(ignore_index=0)))
    assert found == ["ignored_class"] * (form == "a class")


@pytest.mark.parametrize("is_twice", [True, False])
def test_a_sigmoid_within_a_loss_that_applies_one(is_twice: bool) -> None:
    """A focal loss needs the probabilities, but not as logits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    x = torch.randn(64, 8)
    y = (x[:, :1] > 0.5).float()

    def focal(outputs: Tensor, y: Tensor) -> Tensor:
        p = outputs.sigmoid()
        cross_entropy = F.binary_cross_entropy_with_logits(p if is_twice else outputs, y, reduction="none")
        return ((1 - p * y - (1 - p) * (1 - y)) ** 2 * cross_entropy).mean()

    assert ("activated_twice" in kinds(diagnose(model, (x, y), loss=focal))) == is_twice
