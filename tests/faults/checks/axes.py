"""Axes that are mistaken for each other: examples, positions and channels; norms that remove what targets need."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import checks, given, layers
from tests.faults.training import module

SOURCE = torch.Generator().manual_seed(0)
VALUES, OTHERS = torch.randn(24, 6, generator=SOURCE), torch.randn(24, 5, generator=SOURCE)
TOKENS = torch.randint(12, (20, 7), generator=SOURCE)


def _between(function):
    model = module(lambda self, x: self.last(function(self.first(x).relu())), first=(6, 16), last=(16, 3))
    return given(model, VALUES, torch.arange(24) % 3)


for operation, wrong, *right in (
    ("normalize", lambda h: F.normalize(h, dim=0), lambda h: F.normalize(h, dim=1)),
    ("softmax", lambda h: h * h.softmax(0), lambda h: h * h.softmax(1)),
    ("max", lambda h: h / h.max()),
    ("cumsum", lambda h: h.cumsum(0), lambda h: h.tanh()),
    ("cumsum", lambda h: h.flip(0).cumsum(0).flip(0)),
    ("mean", lambda h: h - h.mean(0), lambda h: h - h.mean(1, keepdim=True)),
):
    name = f"{operation}_over_examples" + "_backward" * (operation == "cumsum" and not right)
    checks(_between, {name: ("mixes_examples", wrong, *right)}, rf"at {operation}, line")


def _attention(along, batch_first=True):
    """Embeddings with positions along an axis, and attention."""

    def forward(self, ids):
        positions = self.positions[: ids.shape[along]]
        h = self.embed(ids) + (positions if along else positions[:, None])
        return self.head((h + self.attention(h, h, h)[0]).mean(1))

    parts = {"embed": nn.Embedding(12, 16), "head": nn.Linear(16, 3)}
    model = module(forward, **parts, attention=nn.MultiheadAttention(16, 2, batch_first=batch_first))
    model.register_buffer("positions", torch.randn(40, 16))
    return given(model, TOKENS, torch.arange(20) % 3)


rows = {
    "positions_along_the_batch": ("place_in_batch", 0, 1),
    "attention_along_the_batch": ("mixes_examples", (1, False)),
}
checks(_attention, rows)


def _pairs():
    """Similarities of all pairs of two sets of examples."""

    def forward(self, x, z):
        return 10 * F.normalize(self.image(x), dim=1) @ F.normalize(self.text(z), dim=1).t()

    return given(module(forward, image=(6, 8), text=(5, 8)), (VALUES, OTHERS), torch.arange(24))


def _tagger():
    """Recurrence with positions first."""
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (14, 16), generator=source)
    ids[torch.arange(14)[:, None] >= torch.randint(4, 14, (16,), generator=source)] = 0
    parts = {"embed": nn.Embedding(12, 16), "layer": nn.GRU(16, 16), "head": (16, 3)}
    model = module(lambda self, ids: self.head(self.layer(self.embed(ids))[0]), **parts)
    return given(model, ids, ids % 3, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()))


checks(lambda make: make(), {"similarities_of_all_pairs": ("", _pairs), "positions_first": ("", _tagger)})


def _viewed(permuted):
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 3, 9, 8, generator=source), torch.randint(5, (6, 9, 8), generator=source)

    def loss(outputs, targets):
        outputs = outputs.permute(0, 2, 3, 1) if permuted else outputs
        return F.cross_entropy(outputs.reshape(-1, 5), targets.flatten())

    return given(nn.Conv2d(3, 5, 3, padding=1), x, y, loss)


checks(_viewed, {"view_in_the_loss": ("moved_axis", False, True)})


def _normalized(norm, has_pattern=False):
    """Images whose targets are in their means, or in a pattern."""
    y = torch.arange(32) % 2
    shift = 2 * y[:, None, None, None]
    x = torch.randn(32, 3, 6, 6, generator=torch.Generator().manual_seed(0)) + shift
    x = x + 2 * (1 - shift) * (torch.arange(6) % 2) - shift if has_pattern else x
    tail = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    return given(nn.Sequential(norm(3), nn.Conv2d(3, 8, 3, padding=1), *tail), x, y)


rows = {
    "instance_norm_of_means": ("invariant_outputs", nn.InstanceNorm2d, nn.BatchNorm2d, r"where=\('0',\)"),
    "instance_norm_of_patterns": ("", (nn.InstanceNorm2d, True)),
}
checks(_normalized, rows)


def _of_two(first=(), last=()):
    source = torch.Generator().manual_seed(0)
    model = nn.Sequential(*first, layers(2, 32, 4), *last)
    return given(model, torch.randn(40, 2, generator=source), 3 * torch.randn(40, 4, generator=source), F.mse_loss)


rows = {
    "norm_over_two_values": ("norm_of_two", lambda: _of_two([nn.LayerNorm(2)]), _of_two),
    "norm_of_the_outputs": (
        "normalized_outputs",
        lambda: _of_two(last=[nn.LayerNorm(4)]),
        lambda: _of_two(last=[nn.LayerNorm(4), nn.Linear(4, 4)]),
    ),
}
checks(lambda make: make(), rows)


def _mixed(mix):
    """Messages along the edges of a graph."""
    first, second = nn.Linear(6, 32), nn.Linear(32, 3)
    x, edges = torch.randn(40, 6), torch.randint(40, (2, 100))
    model = module(lambda self, x, edges: self.second(mix(F.relu(self.first(x)), edges)), first=first, second=second)
    return given(model, (x, edges), torch.arange(40) % 3)


def _multiplied(x, edges):
    matrix = torch.zeros(len(x), len(x))
    matrix[edges[0], edges[1]] = 0.5
    return x + matrix @ x


def _scattered(x, edges):
    return x.scatter_add(0, edges[1][:, None].expand(-1, x.shape[1]), x.index_select(0, edges[0]))


rows = {
    "sum_over_edges": ("", lambda x, e: x + torch.zeros_like(x).index_add_(0, e[1], x[e[0]])),
    "scatter_over_edges": ("", _scattered),
    "matrix_of_edges": ("", _multiplied),
    "attention_of_all_nodes": ("mixes_examples", lambda x, e: x + torch.softmax(x @ x.t(), 1) @ x + 0 * e.sum()),
}
checks(_mixed, rows)
