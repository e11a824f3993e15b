"""Columns and targets of very different scales, targets that contradict each other, and terms of a loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.faults.checks.rows import adam, bits, check, checks, given, layers, numbers
from tests.faults.training import module


def _columns(change, norm=False):
    model = nn.Sequential(*([nn.BatchNorm1d(6)] if norm else []), layers(6, 32, 32, 4))
    x, y = numbers(64, 6, 4)
    return given(model, change(x), y)


OF_INPUTS, OF_TARGETS = "unscaled_inputs", "unscaled_targets"
rows = {
    "amount_beside_shares": (OF_INPUTS, lambda x: torch.cat([x[:, :1] * 3e4, x[:, 1:]], 1), lambda x: x, "columns"),
    "years_as_numbers": (OF_INPUTS, lambda x: x + 2000, "hardly differ"),
    "columns_scaled_twice": (OF_INPUTS, lambda x: (x / 255 - 0.5) / 0.25, "hardly differ"),
    "identifiers_as_numbers": (OF_INPUTS, lambda x: (x.abs() * 500).round(), "identifiers"),
    "tiny_columns": (OF_INPUTS, lambda x: x / 500),
    "years_before_a_norm": ("", (lambda x: x + 2000, True)),
}
checks(_columns, rows)
one_hot = F.one_hot(100 * torch.arange(48), 5000).float()
check("one_hot_inputs_of_many_columns", "", lambda: given(layers(5000, 32, 6), one_hot, torch.arange(48) % 6))


def _prices(scale, mean):
    x = torch.randn(128, 6)
    y = mean + scale * torch.tanh(x @ torch.randn(6, 1))
    return given(layers(6, 32, 32, 1, act=nn.Tanh), x, y, F.mse_loss, adam(1e-3), trial_steps=20)


rows = {
    "prices_of_a_house": (OF_TARGETS, (1e5, 4e5), (1.0, 0.0)),
    "targets_far_from_zero": (OF_TARGETS, (1.0, 300.0)),
    "tiny_targets": (OF_TARGETS, (1e-4, 0.0)),
}
checks(_prices, rows)


def _denoiser(kind):
    """Inputs √ᾱ x + √(1-ᾱ) ε and targets ε; or noise of exploding variance, or bytes that predict a value."""
    signs, kept, noise = torch.randn(64, 32).sign(), torch.rand(64, 1), torch.randn(64, 32)
    scaled = 127.5 * signs if kind == "bytes" else signs
    x, y = kept.sqrt() * scaled + (1 - kept).sqrt() * noise, noise
    if kind == "exploding":
        x = signs + torch.logspace(-2, 1.9, 64)[:, None] * noise
    if kind == "values":
        x, y = 127.5 * (signs + 1), signs
    is_normalized = kind in ("exploding", "values")
    first = [nn.LayerNorm(32), nn.Linear(32, 64)] if is_normalized else [nn.Linear(32, 64), nn.LayerNorm(64)]
    return given(nn.Sequential(*first, nn.Tanh(), nn.Linear(64, 32)), x, y, F.mse_loss)


check("noise_beside_bytes", OF_INPUTS, lambda: _denoiser("bytes"), lambda: _denoiser("signs"), "noise")
check("noise_of_exploding_variance", "", lambda: _denoiser("exploding"))
check("bytes_before_a_norm", "", lambda: _denoiser("values"))


def _boxes(size, adapts=False):
    """Boxes in pixels beside classes: a rate that suits the classes takes long, and Adam may reach them soon."""

    def forward(self, x):
        features = self.body(x).tanh()
        return {"classes": self.classes(features), "box": self.box(features)}

    def loss(outputs, targets):
        boxes = F.smooth_l1_loss(outputs["box"], targets["box"])
        return F.cross_entropy(outputs["classes"], targets["classes"]) + boxes

    model = module(forward, body=(8, 64), classes=(64, 3), box=(64, 2))
    x = torch.randn(64, 8)
    targets = {"classes": (x[:, 0] > 0).long(), "box": size * (x[:, :2].sigmoid())}
    optimizer = Adam(model.parameters(), 0.1) if adapts else SGD(model.parameters(), 0.05, momentum=0.9)
    return given(model, x, targets, loss, optimizer, trial_steps=20)


checks(_boxes, {"boxes_in_pixels": (OF_TARGETS, 2000.0, 1.0), "boxes_that_adam_reaches": ("", (60.0, True))})


def _blobs(examples, classes):
    source = torch.Generator().manual_seed(0)
    y = torch.arange(examples) % classes
    centers = 2 * torch.randn(classes, 10, generator=source)
    return centers[y] + 0.6 * torch.randn(examples, 10, generator=source), y


def _tried(x, y, outputs, loss=F.cross_entropy):
    return given(layers(x.shape[1], 16, outputs), x, y, loss, adam(), trial_steps=20)


BLOBS, FIVE = _blobs(600, 5)
MIXED = FIVE[torch.randperm(600, generator=torch.Generator().manual_seed(1))]
FOUR, EIGHT, OF_FOUR = _blobs(64, 4), _blobs(240, 8), _blobs(120, 4)
TWICE = FOUR[0][::2].repeat_interleave(2, 0)
rows = {
    "labels_in_another_order": ("unrelated_labels", (BLOBS, MIXED, 5), (BLOBS, FIVE, 5)),
    "equal_inputs_with_other_labels": (
        *("contradicting_labels", (TWICE, FOUR[1], 4)),
        (TWICE, FOUR[1][::2].repeat_interleave(2), 4),
    ),
    "class_indices_as_numbers": (
        *("regressed_indices", (EIGHT[0], EIGHT[1].float()[:, None], 1, F.mse_loss)),
        (*EIGHT, 8),
    ),
    "class_that_no_label_has": ("", (OF_FOUR[0], OF_FOUR[1] + 1, 5)),
}
checks(_tried, rows)


def _padded(ignored):
    x, lengths = torch.randint(1, 12, (32, 16)), torch.randint(2, 8, (32,))
    x[torch.arange(16) >= lengths[:, None]] = 0
    y = torch.cat([x[:, 1:], x[:, :1] * 0], 1)
    model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 12))
    return given(model, x, y, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=ignored))


checks(_padded, {"padding_in_the_loss": ("padding_counts", -100, 0)})


def _weighted(weight):
    x = numbers(48, 6)[0]
    targets = torch.stack([x[:, 0], torch.full((48,), weight)], 1)
    return _tried(x, targets, 1, lambda o, t: ((o - t[:, :1]).square() * t[:, 1:]).mean())


checks(_weighted, {"weights_of_zero": ("zero_loss", 0.0, 1.0, "column 1")})


def _terms(loss):
    source = torch.Generator().manual_seed(3)
    x = torch.randn(64, 6, generator=source)
    return _tried(x, torch.tanh(x @ torch.randn(6, 2, generator=source)), 2, loss)


rows = {
    "penalty_that_is_a_sum": (
        "unbalanced_terms",
        lambda o, t: F.mse_loss(o, t) + 10 * o.square().sum(),
        lambda o, t: F.mse_loss(o, t) + 1e-6 * o.square().mean(),
    ),
    "accuracy_as_a_term": (
        "constant_term",
        lambda o, t: F.mse_loss(o[:, 0], t[:, 0]) + 0.1 * (o[:, 1].sign() != t[:, 1].sign()).float().mean(),
        lambda o, t: F.mse_loss(o[:, 0], t[:, 0]) + 0.5 * F.l1_loss(o[:, 1], t[:, 1]),
    ),
    "exponential_of_the_loss": ("exponential_loss", lambda o, t: (5 + F.mse_loss(o, t)).exp()),
}
checks(_terms, rows)


def _drawn(index, form="numbers"):
    """A batch of examples with these indices: numbers, tokens, bits, one of few states, or rows that fill it up."""
    index = torch.as_tensor(index)
    x, y = numbers(64, 12, 4)
    if form == "tokens":
        tokens = torch.randint(50, (64, 12), generator=torch.Generator().manual_seed(0))
        return given(nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), layers(48, 4)), tokens[index], y[index])
    if form == "bits":
        x = bits(64, 12)
    elif form == "states":
        x = 3 * (torch.eye(12) - 1 / 12)[y]
    elif form == "filled":
        x[32:], y[32:] = 1, 0
    return given(layers(12, 32, 4), x[index], y[index])


EIGHTH = torch.arange(64) // 8
rows = {
    "index_divided_by_eight": ("repeated_examples", EIGHTH, torch.arange(64), "'distinct': 8, .*'most': 8"),
    "one_example_most_of_the_time": ("repeated_examples", torch.arange(64).clamp(max=20), torch.arange(64)),
    "texts_drawn_again": ("repeated_examples", (torch.arange(64) % 12, "tokens"), (torch.arange(64), "tokens")),
    "some_examples_drawn_again": ("", torch.arange(64).clamp(max=40)),
    "examples_drawn_four_times": ("", torch.arange(64) // 4),
    "bits_drawn_again": ("", (torch.arange(64) % 16, "bits")),
    "few_states": ("", (torch.arange(64), "states")),
    "rows_that_fill_a_batch": ("", (torch.arange(64), "filled")),
}
checks(_drawn, rows)
