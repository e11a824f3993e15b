"""Leaks: outputs that see their targets among the inputs, next to networks that look alike and are right."""

import torch
from torch import nn
from torch.nn import functional as F

from normless.probes import own_loss
from tests.faults.checks.rows import check, checks, given, layers
from tests.faults.training import module


def _per_token(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)


def _shifting(logits, targets):
    return _per_token(logits[:, :-1], targets[:, 1:])


def _tokens(examples=12, positions=11):
    return torch.randint(1, 20, (examples, positions), generator=torch.Generator().manual_seed(3))


IDS = _tokens()


def _attention(diagonal=1, between=None, time_first=False):
    """One layer of attention; `diagonal` is the first later position that is masked, None masks nothing."""
    torch.manual_seed(0)

    def forward(self, x):
        x = x.t() if time_first else x
        h = self.embed(x) + self.positions[: x.shape[1]]
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if diagonal is not None:
            mask = torch.ones(x.shape[1], x.shape[1]).triu(diagonal).bool()
            scores = scores.masked_fill(mask, -1e9)
        h = h + scores.softmax(-1) @ v
        result = self.head(h if between is None else between(h))
        return result.transpose(0, 1) if time_first else result

    embed, positions = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(20, 16))
    return module(forward, embed=embed, positions=positions, qkv=nn.Linear(16, 48), head=nn.Linear(16, 20))


def _over_positions(h):
    return (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-5)


def _language(options_batch_loss):
    options, batch, loss = options_batch_loss
    return given(_attention(**options), *batch(IDS), loss)


SHIFTED = lambda x: (x[:, :-1], x[:, 1:])  # noqa: E731
SAME = lambda x: (x, x)  # noqa: E731
OPEN, CAUSAL = {"diagonal": None}, {}
checks(
    {
        "no_causal_mask": ("sees_future", (OPEN, SHIFTED, _per_token), (CAUSAL, SHIFTED, _per_token)),
        "norm_over_positions": ("sees_future", ({"between": _over_positions}, SHIFTED, _per_token)),
        "no_causal_mask_flat_targets": (
            "sees_future",
            (OPEN, lambda x: (x[:, :-1], x[:, 1:].flatten()), _per_token),
        ),
        "no_causal_mask_shifting_loss": ("sees_future", (OPEN, SAME, _shifting), (CAUSAL, SAME, _shifting)),
        "no_causal_mask_time_first": (
            "sees_future",
            (OPEN | {"time_first": True}, lambda x: (x[:, :-1].t(), x[:, 1:].t()), _per_token),
            ({"time_first": True}, lambda x: (x[:, :-1].t(), x[:, 1:].t()), _per_token),
        ),
        "targets_shifted_twice": ("shifted_twice", (CAUSAL, SHIFTED, _shifting)),
        "targets_not_shifted": ("unshifted_targets", (CAUSAL, SAME, _per_token)),
        "targets_shifted_backward": (
            "backward_shift",
            (CAUSAL, lambda x: (x, x.roll(1, 1)), _per_token),
            (CAUSAL, lambda x: (x, x.roll(-1, 1)), _per_token),
        ),
        "targets_in_another_order": ("", (OPEN, lambda x: (x, x.flip(1)), _per_token)),
    },
    _language,
)

check(
    "causal_mask_of_one_more",
    "sees_future",
    lambda: _language(({"diagonal": 2}, SHIFTED, _per_token)),
    says="one position",
)


def _masked(visible):
    x = _tokens(24, 12)
    hidden = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    return given(
        _attention(None), x if visible else torch.where(hidden, 0, x), torch.where(hidden, x, -100), _per_token
    )


check("masked_tokens_that_are_visible", "visible_targets", lambda: _masked(True), lambda: _masked(False))


def _labelled(diagonal):
    """A network that computes its loss from labels, as those of transformers do."""

    def forward(self, ids, labels):
        logits = self.model(ids)
        return {"loss": _shifting(logits, labels), "logits": logits}

    return given(module(forward, model=_attention(diagonal)), {"ids": IDS, "labels": IDS}, None, own_loss)


check("labels_among_the_arguments", "sees_future", lambda: _labelled(None), lambda: _labelled(1))


def _recurrent(both=False, target="next", given_target=False):
    """A recurrence over continuous sequences, of one direction or both."""
    torch.manual_seed(0)
    x = torch.randn(12, 16, 3).cumsum(1)
    y = x[:, 1:, 0] if target == "next" else x[..., 0] * x[..., 1]
    x = x[:, :-1] if target == "next" else torch.cat([x, y[..., None]], 2) if given_target else x

    def forward(self, x):
        return self.head(self.layer(x)[0]).squeeze(-1)

    layer = nn.GRU(x.shape[2], 12, batch_first=True, bidirectional=both)
    return given(module(forward, layer=layer, head=nn.Linear(24 if both else 12, 1)), x, y, F.mse_loss)


check("both_directions", "sees_future", lambda: _recurrent(both=True), _recurrent)
check(
    "target_among_the_channels",
    "target_channel",
    lambda: _recurrent(target="product", given_target=True),
    lambda: _recurrent(both=True, target="product"),
)


def _pixels(own):
    """A masked convolution over images, which sees the pixels before its own, and its own if `own`."""
    x = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)

    def forward(self, x):
        h = F.conv2d(x, self.first.weight * self.mask, self.first.bias, padding=1)
        return self.last(F.relu(h))

    model = module(forward, first=nn.Conv2d(1, 8, 3, padding=1), last=nn.Conv2d(8, 1, 1))
    mask = torch.ones(3, 3)
    mask[1, 1 + own :] = mask[2] = 0
    model.register_buffer("mask", mask)
    return given(model, x, x, F.mse_loss)


check("pixels_that_see_themselves", "unshifted_targets", lambda: _pixels(True), lambda: _pixels(False))


def _coder(around, noisy=False):
    """An autoencoder, possibly with a path around its code."""
    torch.manual_seed(0)
    x = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        result = self.decoder(F.relu(self.encoder(x)))
        return result + x if around else result

    noise = 0.1 * torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
    model = module(forward, encoder=nn.Linear(16, 3), decoder=nn.Linear(3, 16))
    return given(model, x + noise if noisy else x, x, F.mse_loss)


check("path_around_a_code", "bypassed_bottleneck", lambda: _coder(True), lambda: _coder(False))
check("path_around_a_code_of_a_denoiser", "", lambda: _coder(True, noisy=True))

SOURCE = torch.Generator().manual_seed(0)
COLUMNS, LABEL = torch.randn(64, 6, generator=SOURCE), torch.randint(4, (64,), generator=SOURCE)
PRICE = COLUMNS @ torch.randn(6, 1, generator=SOURCE) + torch.rand(64, 1, generator=SOURCE)
CODES = torch.tensor([3.0, 1.5, 7.0, 2.0])
LINE = torch.linspace(-1, 1, 64)[:, None]
checks(
    {
        "label_as_a_column": ("target_column", (LABEL[:, None].float(), LABEL), (None, LABEL)),
        "code_of_the_label_as_a_column": ("target_column", (CODES[LABEL][:, None], LABEL)),
        "one_hot_label_as_columns": ("target_column", (F.one_hot(LABEL, 4).float(), LABEL)),
        "price_as_a_column": ("target_column", ((PRICE - PRICE.mean()) / PRICE.std(), PRICE), (None, PRICE)),
        "function_of_one_column": ("", (LINE, 2 * LINE + 1, True)),
        "prototypes_of_classes": ("", (torch.randn(4, 6, generator=SOURCE)[LABEL], LABEL, True)),
    },
    lambda value: _table(*value),
)


def _table(column, y, alone=False):
    x = COLUMNS if column is None else column if alone else torch.cat([COLUMNS, column], 1)
    is_class = not y.is_floating_point()
    return given(layers(x.shape[1], 32, 4 if is_class else 1), x, y, F.cross_entropy if is_class else F.mse_loss)


def _conditioned(margin):
    """A classifier that is given the labels, for a margin of the true class or as a further input."""
    torch.manual_seed(0)

    def forward(self, x, labels):
        h = self.body(x) + (0 if margin else self.embed(labels))
        result = self.head(F.relu(h))
        return result - 0.3 * F.one_hot(labels, 5) if margin else result

    x, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 5
    model = module(forward, body=nn.Linear(6, 16), embed=nn.Embedding(5, 16), head=nn.Linear(16, 5))
    return given(model, (x, labels), labels)


check("labels_as_a_further_input", "target_column", lambda: _conditioned(False), lambda: _conditioned(True))
