"""Losses of torch, or written by hand, whose arguments do not mean what the loss takes, beside the right call."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import bits, check, checks, given, layers, numbers
from tests.faults.training import made, module, train

N, K = 64, 6
X, LABELS = numbers(N, 12, K)
HOT, TEACHER = bits(N, K), numbers(N, K, seed=2)[0]
RARE = torch.tensor([0] * 40 + [1] * 8 + [2] * 6 + [3] * 4 + [4] * 4 + [5] * 2)
COUNTS = torch.bincount(RARE).float()
KEPT = (torch.arange(N * K) % 30 == 0).float().view(N, K)
CE, BCE = F.cross_entropy, F.binary_cross_entropy_with_logits


def _divergence(outputs, targets, **options):
    return F.kl_div(outputs, targets, reduction="batchmean", **options)


def _given(loss_and_targets):
    loss, targets = loss_and_targets
    return given(layers(12, 32, K, act=nn.Tanh), X, targets, loss)


# For each the kind, the wrong loss and targets, and the right ones.
checks(
    {
        "signs_for_a_margin": (
            "targets_out_of_range",
            (F.soft_margin_loss, HOT),
            (F.soft_margin_loss, 2 * HOT - 1),
        ),
        "masks_of_255": ("targets_out_of_range", (BCE, 255 * HOT), (BCE, HOT)),
        "softmax_for_several_labels": (
            "competing_outputs",
            (lambda o, t: F.binary_cross_entropy(o.softmax(1), t), HOT),
            (lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), HOT),
        ),
        "probabilities_in_nll_loss": (
            "logits_as_logarithms",
            (lambda o, t: F.nll_loss(o.softmax(1), t), LABELS),
            (lambda o, t: F.nll_loss((o.softmax(1) + 1e-9).log(), t), LABELS),
        ),
        "softmax_of_the_loss_over_examples": (
            "normalized_over_wrong_axis",
            (lambda o, t: F.nll_loss(o.log_softmax(0), t), LABELS),
            (lambda o, t: F.nll_loss(o.log_softmax(1), t), LABELS),
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
            "exchanged_arguments",
            (lambda o, t: _divergence(t.log_softmax(1), o.softmax(1)), TEACHER),
        ),
        "logits_as_targets": ("not_distributions", (CE, TEACHER), (CE, TEACHER.softmax(1))),
        "several_labels_of_an_example": (
            "not_distributions",
            (CE, HOT),
            (nn.CrossEntropyLoss(label_smoothing=0.1), F.one_hot(LABELS, K).float()),
        ),
        "index_that_is_a_class": (
            "ignored_class",
            (nn.CrossEntropyLoss(ignore_index=0), LABELS),
            (nn.CrossEntropyLoss(ignore_index=-1), LABELS),
        ),
        "weight_of_zero": (
            "ignored_class",
            (nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1, 1, 1, 1, 1])), LABELS),
            (nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1, 1, 1, 1, 1])), LABELS),
        ),
        "weights_in_proportion": (
            "reversed_weights",
            (nn.CrossEntropyLoss(weight=COUNTS / COUNTS.mean()), RARE),
            (nn.CrossEntropyLoss(weight=COUNTS.mean() / COUNTS), RARE),
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
    },
    _given,
)


def _tagged(last, labels=None, tokens=None, **options):
    """Classes of each of six positions, on the last axis or on axis 1."""
    torch.manual_seed(0)

    def forward(self, x):
        y = self.head(self.rnn(self.embed(x))[0])
        return y if last else y.transpose(1, 2)

    model = module(forward, embed=nn.Embedding(20, 16), rnn=nn.GRU(16, 16, batch_first=True), head=nn.Linear(16, K))
    tokens = torch.randint(20, (32, K)) if tokens is None else tokens
    return given(model, tokens, tokens % K if labels is None else labels, nn.CrossEntropyLoss(**options))


check("classes_on_the_last_axis", "classes_on_last_axis", lambda: _tagged(True), lambda: _tagged(False), "'head'")


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


check(
    "ignored_class_of_tokens",
    "ignored_class",
    lambda: _ignoring("a class"),
    lambda: _ignoring("the end of sequences"),
)
check("ignored_token_that_is_read", "", lambda: _ignoring("a token that is read"))


def _focal(twice):
    """A focal loss needs the probabilities, but not as logits."""

    def loss(outputs, y):
        p = outputs.sigmoid()
        cross_entropy = BCE(p if twice else outputs, y, reduction="none")
        return ((1 - p * y - (1 - p) * (1 - y)) ** 2 * cross_entropy).mean()

    return given(layers(12, 32, 1), X, (X[:, :1] > 0.5).float(), loss)


check("sigmoid_within_a_loss_that_applies_one", "activated_twice", lambda: _focal(True), lambda: _focal(False))


def _by_hand(outputs, targets):
    """Binary cross-entropy of logits, written out."""
    return (outputs.clamp_min(0) - outputs * targets + torch.log1p(torch.exp(-outputs.abs()))).mean()


def _dice(outputs, targets):
    p = outputs.view(-1).sigmoid()
    return 1 - 2 * (p * targets.view(-1)).sum() / (p.sum() + targets.sum())


def _likelihood(outputs, targets):
    return -(outputs - outputs.logsumexp(1, keepdim=True)).gather(1, targets[:, None]).mean()


def _ended(last, loss, y, steps=0):
    """A network that ends in an activation, perhaps after some steps."""
    model = layers(12, 32, 4, last=(last,))
    if steps:
        train(made(model, X, y, lambda net: torch.optim.Adam(net.parameters(), 1e-2), loss), steps)
        model.zero_grad()
    return given(model, X, y, loss)


BINARY, CLASSES = (X[:, :4] > 0).float(), torch.arange(N) % 4
for steps in (0, 60):
    for loss, twin in (
        (nn.BCEWithLogitsLoss(), (nn.Sigmoid, F.binary_cross_entropy)),
        (_by_hand, (nn.Identity, _by_hand)),
        (lambda o, t: 0.25 * F.binary_cross_entropy(o.sigmoid(), t), (nn.Sigmoid, F.mse_loss)),
        (_dice, (nn.Identity, BCE)),
    ):
        name = getattr(loss, "__name__", type(loss).__name__).strip("_").replace("<lambda>", "focal").lower()
        check(
            f"sigmoid_before_{name}_after_{steps}_steps",
            "activation_after_classifier",
            lambda loss=loss, steps=steps: _ended(nn.Sigmoid(), loss, BINARY, steps),
            lambda twin=twin, steps=steps: _ended(twin[0](), twin[1], BINARY, steps),
        )
    for loss in (CE, nn.CrossEntropyLoss(label_smoothing=0.1), _likelihood):
        name = getattr(loss, "__name__", "smoothed_cross_entropy").strip("_")
        check(
            f"softmax_before_{name}_after_{steps}_steps",
            "softmax_before_loss",
            lambda loss=loss, steps=steps: _ended(nn.Softmax(1), loss, CLASSES, 3 * steps),
            lambda loss=loss, steps=steps: _ended(nn.Identity(), loss, CLASSES, 3 * steps),
        )


def _regressed(shape_and_loss):
    """Outputs (48, 1), or another shape, for targets (48,)."""
    shape, loss = shape_and_loss
    torch.manual_seed(0)

    def forward(self, x):
        return shape(self.body(x))

    x = numbers(48, 6)[0]
    return given(module(forward, body=layers(6, 32, 1, act=nn.Tanh)), x, (x[:, 0] * x[:, 1]).tanh(), loss)


def _flat(outputs):
    return outputs.squeeze(1)


def _column(outputs):
    return outputs


checks(
    {
        "absolute_differences_of_all_pairs": (
            "label_shape",
            (_column, lambda o, t: (o - t).abs().mean()),
            (_flat, lambda o, t: (o - t).abs().mean()),
        ),
        "huber_by_hand_of_all_pairs": (
            "label_shape",
            (_column, lambda o, t: torch.where((o - t).abs() < 1, (o - t) ** 2, (o - t).abs()).mean()),
            (_flat, lambda o, t: ((o - t) / t.std()).abs().mean()),
        ),
        "logarithms_of_all_pairs": (
            "label_shape",
            (_column, lambda o, t: (torch.log1p(o.exp()) - t.exp().log1p()).pow(2).mean()),
            (_flat, lambda o, t: (o[:, None] - t[None]).abs().min(1)[0].mean()),  # on purpose
        ),
    },
    _regressed,
)


def _single(last_target_loss):
    """One output, or six, of five hidden layers' width for labels of six classes."""
    last, target, loss = last_target_loss
    return given(layers(12, 32, 32, 1 if last is None else 6, last=last or ()), X, target(LABELS[:, None]), loss)


checks(
    {
        "labels_of_a_margin": (
            "targets_out_of_range",
            (None, lambda y: 2.0 * (y > 2) - 1, BCE),
            (None, lambda y: 2.0 * (y > 2) - 1, lambda o, t: BCE(o, (t + 1) / 2)),
        ),
        "margins": ("", (None, lambda y: 2.0 * (y > 2) - 1, lambda o, t: F.relu(1 - o * t).mean())),
        "smoothed_labels": ("", (None, lambda y: 0.1 + 0.8 * (y > 2), BCE)),
        "one_class_of_one_output": ("one_class", (None, lambda y: 0 * y[:, 0], CE)),
        "logits_as_logarithms": (
            "logits_as_logarithms",
            ((nn.Identity(),), lambda y: y[:, 0], F.nll_loss),
            ((nn.LogSoftmax(1),), lambda y: y[:, 0], F.nll_loss),
        ),
    },
    _single,
)
