"""Losses of torch, or written by hand, whose arguments do not mean what the loss takes, beside the right call."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import adam, bits, checks, given, layers, numbers
from tests.faults.training import made, module, train

N, K = 64, 6
X, LABELS = numbers(N, 12, K)
HOT, TEACHER = bits(N, K), numbers(N, K, seed=2)[0]
RARE = torch.tensor([0] * 40 + [1] * 8 + [2] * 6 + [3] * 4 + [4] * 4 + [5] * 2)
COUNTS = torch.bincount(RARE).float()
KEPT = (torch.arange(N * K) % 30 == 0).float().view(N, K)
CE, BCE, NLL, TAKES = F.cross_entropy, F.binary_cross_entropy_with_logits, F.nll_loss, nn.CrossEntropyLoss


def _divergence(outputs, targets, **options):
    return F.kl_div(outputs, targets, reduction="batchmean", **options)


def _several(activation):
    return lambda o, t: F.binary_cross_entropy(activation(o), t)


def _given(loss, targets=LABELS):
    return given(layers(12, 32, K, act=nn.Tanh), X, targets, loss)


# For each the kind, the wrong loss and targets, and the right ones.
rows = {
    "signs_for_a_margin": ("targets_out_of_range", (F.soft_margin_loss, HOT), (F.soft_margin_loss, 2 * HOT - 1)),
    "masks_of_255": ("targets_out_of_range", (BCE, 255 * HOT), (BCE, HOT)),
    "softmax_for_several_labels": (
        *("competing_outputs", (_several(lambda o: o.softmax(1)), HOT)),
        (_several(torch.sigmoid), HOT),
    ),
    "probabilities_in_nll_loss": (
        "logits_as_logarithms",
        lambda o, t: NLL(o.softmax(1), t),
        lambda o, t: NLL((o.softmax(1) + 1e-9).log(), t),
    ),
    "softmax_of_the_loss_over_examples": (
        "normalized_over_wrong_axis",
        lambda o, t: NLL(o.log_softmax(0), t),
        lambda o, t: NLL(o.log_softmax(1), t),
    ),
    "probabilities_in_kl_div": (
        "logits_as_logarithms",
        (lambda o, t: _divergence(o.softmax(1), t.softmax(1)), TEACHER),
        (lambda o, t: _divergence(o.log_softmax(1), t.softmax(1)), TEACHER),
    ),
    "logarithms_as_targets": (
        "targets_of_divergence",
        (lambda o, t: _divergence(o.log_softmax(1), t.log_softmax(1)), TEACHER),
        (lambda o, t: _divergence(o.log_softmax(1), t.log_softmax(1), log_target=True), TEACHER),
    ),
    "exchanged_arguments": (
        *("exchanged_arguments", (lambda o, t: _divergence(t.log_softmax(1), o.softmax(1)), TEACHER)),
    ),
    "logits_as_targets": ("not_distributions", (CE, TEACHER), (CE, TEACHER.softmax(1))),
    "several_labels_of_an_example": (
        *("not_distributions", (CE, HOT)),
        (TAKES(label_smoothing=0.1), F.one_hot(LABELS, K).float()),
    ),
    "index_that_is_a_class": ("ignored_class", TAKES(ignore_index=0), TAKES(ignore_index=-1)),
    "weight_of_zero": (
        "ignored_class",
        TAKES(weight=torch.tensor([0.0, 1, 1, 1, 1, 1])),
        TAKES(weight=torch.tensor([0.5, 1, 1, 1, 1, 1])),
    ),
    "weights_in_proportion": (
        "reversed_weights",
        (TAKES(weight=COUNTS / COUNTS.mean()), RARE),
        (TAKES(weight=COUNTS.mean() / COUNTS), RARE),
    ),
    "matrix_of_labels": (
        "multi_hot_targets",
        (F.multilabel_margin_loss, HOT.long()),
        (F.multilabel_margin_loss, torch.cat([LABELS[:, None], torch.full((N, K - 1), -1)], 1)),
    ),
    "mean_over_a_mask": (
        "masked_mean",
        (lambda o, t: ((o - t).square() * KEPT).mean(), TEACHER),
        (lambda o, t: ((o - t).square() * KEPT).sum() / KEPT.sum(), TEACHER),
    ),
    "column_of_classes_is_one_class": ("one_class", (lambda o, t: CE(o[:, :1], t), 0 * LABELS)),
}
checks(_given, rows)


def _tagged(last, labels=None, tokens=None, **options):
    """Classes of each of six positions, on the last axis or on axis 1."""

    def forward(self, x):
        y = self.head(self.rnn(self.embed(x))[0])
        return y if last else y.transpose(1, 2)

    parts = {"embed": nn.Embedding(20, 16), "rnn": nn.GRU(16, 16, batch_first=True), "head": nn.Linear(16, K)}
    tokens = torch.randint(20, (32, K)) if tokens is None else tokens
    return given(module(forward, **parts), tokens, tokens % K if labels is None else labels, TAKES(**options))


checks(_tagged, {"classes_on_the_last_axis": ("classes_on_last_axis", True, False, "'head'")})


def _ignoring(form):
    """An ignored index is a class, ends the sequences, or stands where a single token is read."""
    tokens = torch.randint(6, 20, (32, 9), generator=torch.Generator().manual_seed(0))
    labels = tokens % K
    if form == "the end of sequences":
        labels[:, 5:] = 0
        labels[:, :5].clamp_(min=1)
    elif form == "a token that is read":
        labels = torch.where(tokens % 3 == 0, 0, tokens % (K - 1) + 1)
        tokens[labels == 0] = 0
    return _tagged(False, labels, tokens, ignore_index=0)


rows = {
    "ignored_class_of_tokens": ("ignored_class", ("a class",), ("the end of sequences",)),
    "ignored_token_that_is_read": ("", ("a token that is read",)),
}
checks(_ignoring, rows)


def _focal(twice):
    """A focal loss needs the probabilities, but not as logits."""

    def loss(outputs, y):
        p = outputs.sigmoid()
        cross_entropy = BCE(p if twice else outputs, y, reduction="none")
        return ((1 - p * y - (1 - p) * (1 - y)) ** 2 * cross_entropy).mean()

    return given(layers(12, 32, 1), X, (X[:, :1] > 0.5).float(), loss)


checks(_focal, {"sigmoid_within_a_loss_that_applies_one": ("activated_twice", True, False)})


def _by_hand(outputs, targets):
    """Binary cross-entropy of logits, written out."""
    return (outputs.clamp_min(0) - outputs * targets + torch.log1p(torch.exp(-outputs.abs()))).mean()


def _dice(outputs, targets):
    p = outputs.view(-1).sigmoid()
    return 1 - 2 * (p * targets.view(-1)).sum() / (p.sum() + targets.sum())


def _likelihood(outputs, targets):
    return -(outputs - outputs.logsumexp(1, keepdim=True)).gather(1, targets[:, None]).mean()


def _ended(last, loss, y, steps):
    """A network that ends in an activation, perhaps after some steps."""
    model = layers(12, 32, 4, last=(last,))
    if steps:
        train(made(model, X, y, adam(), loss), steps)
        model.zero_grad()
    return given(model, X, y, loss)


BINARY, CLASSES = (X[:, :4] > 0).float(), torch.arange(N) % 4
SIGMOIDS = {
    "bcewithlogitsloss": (nn.BCEWithLogitsLoss(), nn.Sigmoid(), F.binary_cross_entropy),
    "by_hand": (_by_hand, nn.Identity(), _by_hand),
    "focal": (lambda o, t: 0.25 * F.binary_cross_entropy(o.sigmoid(), t), nn.Sigmoid(), F.mse_loss),
    "dice": (_dice, nn.Identity(), BCE),
}
SOFTMAXES = {"cross_entropy": CE, "smoothed_cross_entropy": TAKES(label_smoothing=0.1), "likelihood": _likelihood}
for steps in (0, 60):
    for name, (loss, last, other) in SIGMOIDS.items():
        wrong, right = (nn.Sigmoid(), loss, BINARY, steps), (last, other, BINARY, steps)
        row = {f"sigmoid_before_{name}_after_{steps}_steps": ("activation_after_classifier", wrong, right)}
        checks(_ended, row)
    for name, loss in SOFTMAXES.items():
        wrong, right = ((last, loss, CLASSES, 3 * steps) for last in (nn.Softmax(1), nn.Identity()))
        checks(_ended, {f"softmax_before_{name}_after_{steps}_steps": ("softmax_before_loss", wrong, right)})


def _regressed(shape, loss):
    """Outputs (48, 1), or another shape, for targets (48,)."""
    x = numbers(48, 6)[0]
    model = module(lambda self, x: shape(self.body(x)), body=layers(6, 32, 1, act=nn.Tanh))
    return given(model, x, (x[:, 0] * x[:, 1]).tanh(), loss)


def _flat(outputs):
    return outputs.squeeze(1)


def _column(outputs):
    return outputs


def _huber(outputs, targets):
    far = (outputs - targets).abs()
    return torch.where(far < 1, (outputs - targets) ** 2, far).mean()


def _absolute(outputs, targets):
    return (outputs - targets).abs().mean()


rows = {
    "absolute_differences_of_all_pairs": ("label_shape", (_column, _absolute), (_flat, _absolute)),
    "huber_by_hand_of_all_pairs": (
        *("label_shape", (_column, _huber)),
        (_flat, lambda o, t: ((o - t) / t.std()).abs().mean()),
    ),
    "logarithms_of_all_pairs": (
        "label_shape",
        (_column, lambda o, t: (torch.log1p(o.exp()) - t.exp().log1p()).pow(2).mean()),
        (_flat, lambda o, t: (o[:, None] - t[None]).abs().min(1)[0].mean()),  # on purpose
    ),
}
checks(_regressed, rows)


def _single(target, loss, last=None):
    """One output, or six, for labels of six classes."""
    return given(layers(12, 32, 32, 6 if last else 1, last=(last,) if last else ()), X, target, loss)


COLUMN, LATE = LABELS[:, None], LABELS[:, None] > 2
rows = {
    "labels_of_a_margin": (
        "targets_out_of_range",
        (2.0 * LATE - 1, BCE),
        (2.0 * LATE - 1, lambda o, t: BCE(o, (t + 1) / 2)),
    ),
    "margins": ("", (2.0 * LATE - 1, lambda o, t: F.relu(1 - o * t).mean())),
    "smoothed_labels": ("", (0.1 + 0.8 * LATE, BCE)),
    "one_class_of_one_output": ("one_class", (0 * LABELS, CE)),
    "logits_as_logarithms": (
        *("logits_as_logarithms", (LABELS, NLL, nn.Identity())),
        (LABELS, NLL, nn.LogSoftmax(1)),
    ),
}
checks(_single, rows)


def _weighted(shares, weight, targets=None):
    """Two or three classes with these shares of positives, and a `pos_weight` of each."""
    ranks = torch.arange(N, dtype=torch.float)[:, None] / N
    targets = (ranks < torch.tensor(shares)).float() if targets is None else targets
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weight))
    return given(layers(12, 32, targets.shape[1]), X, targets, loss)


rows = {
    "positives_over_negatives": ("reversed_pos_weight", ((0.125,), (1 / 7,)), ((0.125,), (7.0,)), "balanced.*7"),
    "one_weight_of_positives": ("reversed_pos_weight", ((0.1, 0.2), 0.15), ((0.1, 0.2), 6.0)),
    "weights_of_positives_of_classes": (
        *("reversed_pos_weight", ((0.05, 0.2, 0.5), (0.05, 0.25, 1.0)), ((0.05, 0.2, 0.5), (19.0, 4.0, 1.0))),
        "'class': 0",
    ),
    "large_weight_of_frequent_positives": (
        *("reversed_pos_weight", ((0.875,), (7.0,)), ((0.875,), (1 / 7,))),
        "'pos_weight': 7",
    ),
    # On purpose: a little precision, or a class that outweighs the others.
    "pos_weight_for_precision": ("", ((0.125,), (0.5,))),
    "pos_weights_of_balanced_classes": ("", ((0.5, 0.5), (0.1, 10.0))),
    "pos_weight_against_one_class": ("", ((0.05, 0.2, 0.5), (19.0, 0.25, 1.0))),
}
checks(_weighted, rows)
