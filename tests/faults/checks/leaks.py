"""Leaks: outputs that see their targets among the inputs, next to networks that look alike and are right."""

import torch
from torch import nn
from torch.nn import functional as F

from normless.probes.hooks._losses import own_loss
from tests.faults.checks.rows import checks, given, layers
from tests.faults.training import module


def _per_token(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)


def _shifting(logits, targets):
    return _per_token(logits[:, :-1], targets[:, 1:])


def _tokens(examples=12, positions=11):
    return torch.randint(1, 20, (examples, positions), generator=torch.Generator().manual_seed(3))


IDS = _tokens()


def _attention(diagonal=1, between=lambda h: h, time_first=False):
    """One layer of attention; `diagonal` is the first later position that is masked, None masks nothing."""

    def forward(self, x):
        x = x.t() if time_first else x
        h = self.embed(x) + self.positions[: x.shape[1]]
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if diagonal is not None:
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(diagonal).bool(), -1e9)
        result = self.head(between(h + scores.softmax(-1) @ v))
        return result.transpose(0, 1) if time_first else result

    torch.manual_seed(0)
    embed, positions = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(20, 16))
    return module(forward, embed=embed, positions=positions, qkv=(16, 48), head=(16, 20))


def _over_positions(h):
    return (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-5)


def _language(options, batch, loss=_per_token):
    return given(_attention(**options), *batch, loss)


SAME, SHIFTED, FIRST = (IDS, IDS), (IDS[:, :-1], IDS[:, 1:]), (IDS[:, :-1].t(), IDS[:, 1:].t())
OPEN, CAUSAL, FUTURE = {"diagonal": None}, {}, "sees_future"
rows = {
    "no_causal_mask": (FUTURE, (OPEN, SHIFTED), (CAUSAL, SHIFTED)),
    "norm_over_positions": (FUTURE, ({"between": _over_positions}, SHIFTED)),
    "no_causal_mask_flat_targets": (FUTURE, (OPEN, (IDS[:, :-1], IDS[:, 1:].flatten()))),
    "no_causal_mask_shifting_loss": (FUTURE, (OPEN, SAME, _shifting), (CAUSAL, SAME, _shifting)),
    "no_causal_mask_time_first": (FUTURE, (OPEN | {"time_first": True}, FIRST), ({"time_first": True}, FIRST)),
    "targets_shifted_twice": ("shifted_twice", (CAUSAL, SHIFTED, _shifting)),
    "targets_not_shifted": ("unshifted_targets", (CAUSAL, SAME)),
    "targets_shifted_backward": ("backward_shift", (CAUSAL, (IDS, IDS.roll(1, 1))), (CAUSAL, (IDS, IDS.roll(-1, 1)))),
    "targets_in_another_order": ("", (OPEN, (IDS, IDS.flip(1)))),
    "causal_mask_of_one_more": (FUTURE, ({"diagonal": 2}, SHIFTED), "one position"),
}
checks(_language, rows)


def _masked(visible):
    x = _tokens(24, 12)
    hidden = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    inputs = x if visible else torch.where(hidden, 0, x)
    return given(_attention(None), inputs, torch.where(hidden, x, -100), _per_token)


checks(_masked, {"masked_tokens_that_are_visible": ("visible_targets", True, False)})


def _labelled(diagonal):
    """A network that computes its loss from labels, as those of transformers do."""

    def forward(self, ids, labels):
        logits = self.model(ids)
        return {"loss": _shifting(logits, labels), "logits": logits}

    return given(module(forward, model=_attention(diagonal)), {"ids": IDS, "labels": IDS}, None, own_loss)


checks(_labelled, {"labels_among_the_arguments": (FUTURE, None, 1)})


def _recurrent(both=False, target="next", given_target=False):
    """A recurrence over continuous sequences, of one direction or both."""
    x = torch.randn(12, 16, 3).cumsum(1)
    y = x[:, 1:, 0] if target == "next" else x[..., 0] * x[..., 1]
    x = x[:, :-1] if target == "next" else torch.cat([x, y[..., None]], 2) if given_target else x
    layer = nn.GRU(x.shape[2], 12, batch_first=True, bidirectional=both)
    model = module(lambda self, x: self.head(self.layer(x)[0]).squeeze(-1), layer=layer, head=(24 if both else 12, 1))
    return given(model, x, y, F.mse_loss)


rows = {
    "both_directions": (FUTURE, True, False),
    "target_among_the_channels": ("target_channel", (False, "product", True), (True, "product")),
}
checks(_recurrent, rows)


def _pixels(own):
    """A masked convolution over images, which sees the pixels before its own, and its own if `own`."""
    x = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        h = F.conv2d(x, self.first.weight * self.mask, self.first.bias, padding=1)
        return self.last(F.relu(h))

    model = module(forward, first=nn.Conv2d(1, 8, 3, padding=1), last=nn.Conv2d(8, 1, 1))
    mask = torch.ones(3, 3)
    mask[1, 1 + own :] = mask[2] = 0
    model.register_buffer("mask", mask)
    return given(model, x, x, F.mse_loss)


checks(_pixels, {"pixels_that_see_themselves": ("unshifted_targets", True, False)})


def _coder(around, noisy=False):
    """An autoencoder, possibly with a path around its code."""
    x = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    noise = 0.1 * torch.randn(24, 16, generator=torch.Generator().manual_seed(1))

    def forward(self, x):
        result = self.decoder(F.relu(self.encoder(x)))
        return result + x if around else result

    return given(module(forward, encoder=(16, 3), decoder=(3, 16)), x + noise if noisy else x, x, F.mse_loss)


rows = {
    "path_around_a_code": ("bypassed_bottleneck", True, False),
    "path_around_a_code_of_a_denoiser": ("", (True, True)),
}
checks(_coder, rows)
SOURCE = torch.Generator().manual_seed(0)
COLUMNS, LABEL = torch.randn(64, 6, generator=SOURCE), torch.randint(4, (64,), generator=SOURCE)
PRICE = COLUMNS @ torch.randn(6, 1, generator=SOURCE) + torch.rand(64, 1, generator=SOURCE)
CODES = torch.tensor([3.0, 1.5, 7.0, 2.0])
LINE = torch.linspace(-1, 1, 64)[:, None]


def _table(column, y, alone=False):
    x = COLUMNS if column is None else column if alone else torch.cat([COLUMNS, column], 1)
    is_class = not y.is_floating_point()
    return given(layers(x.shape[1], 32, 4 if is_class else 1), x, y, F.cross_entropy if is_class else F.mse_loss)


rows = {
    "label_as_a_column": ("target_column", (LABEL[:, None].float(), LABEL), (None, LABEL)),
    "code_of_the_label_as_a_column": ("target_column", (CODES[LABEL][:, None], LABEL)),
    "one_hot_label_as_columns": ("target_column", (F.one_hot(LABEL, 4).float(), LABEL)),
    "price_as_a_column": ("target_column", ((PRICE - PRICE.mean()) / PRICE.std(), PRICE), (None, PRICE)),
    "function_of_one_column": ("", (LINE, 2 * LINE + 1, True)),
    "prototypes_of_classes": ("", (torch.randn(4, 6, generator=SOURCE)[LABEL], LABEL, True)),
}
checks(_table, rows)


def _conditioned(margin):
    """A classifier that is given the labels, for a margin of the true class or as a further input."""

    def forward(self, x, labels):
        h = self.body(x) + (0 if margin else self.embed(labels))
        result = self.head(F.relu(h))
        return result - 0.3 * F.one_hot(labels, 5) if margin else result

    x, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 5
    model = module(forward, body=nn.Linear(6, 16), embed=nn.Embedding(5, 16), head=nn.Linear(16, 5))
    return given(model, (x, labels), labels)


checks(_conditioned, {"labels_as_a_further_input": ("target_column", False, True)})
