"""Axes that are mistaken for each other: examples, positions and channels; norms that remove what targets need."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import check, checks, given, layers
from tests.faults.training import module

SOURCE = torch.Generator().manual_seed(0)
VALUES, OTHERS = torch.randn(24, 6, generator=SOURCE), torch.randn(24, 5, generator=SOURCE)
TOKENS = torch.randint(12, (20, 7), generator=SOURCE)


def _between(function):
    torch.manual_seed(0)

    def forward(self, x):
        return self.last(function(self.first(x).relu()))

    return given(module(forward, first=nn.Linear(6, 16), last=nn.Linear(16, 3)), VALUES, torch.arange(24) % 3)


for operation, wrong, right in (
    ("normalize", lambda h: F.normalize(h, dim=0), lambda h: F.normalize(h, dim=1)),
    ("softmax", lambda h: h * h.softmax(0), lambda h: h * h.softmax(1)),
    ("max", lambda h: h / h.max(), None),
    ("cumsum", lambda h: h.cumsum(0), lambda h: h.tanh()),
    ("cumsum", lambda h: h.flip(0).cumsum(0).flip(0), None),
    ("mean", lambda h: h - h.mean(0), lambda h: h - h.mean(1, keepdim=True)),
):
    name = f"{operation}_over_examples" + "_backward" * (operation == "cumsum" and right is None)
    twin = right and (lambda f=right: _between(f))
    check(name, "mixes_examples", lambda f=wrong: _between(f), twin, rf"at {operation}, line")


def _attention(along, batch_first=True):
    """Embeddings with positions along an axis, and attention."""
    torch.manual_seed(0)

    def forward(self, ids):
        positions = self.positions[: ids.shape[along]]
        h = self.embed(ids) + (positions if along else positions[:, None])
        return self.head((h + self.attention(h, h, h)[0]).mean(1))

    parts = {"embed": nn.Embedding(12, 16), "head": nn.Linear(16, 3)}
    attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)
    model = module(forward, **parts, attention=attention)
    model.register_buffer("positions", torch.randn(40, 16))
    return given(model, TOKENS, torch.arange(20) % 3)


check("positions_along_the_batch", "place_in_batch", lambda: _attention(0), lambda: _attention(1))
check("attention_along_the_batch", "mixes_examples", lambda: _attention(1, batch_first=False))


def _pairs():
    """Similarities of all pairs of two sets of examples."""
    torch.manual_seed(0)

    def forward(self, x, z):
        return 10 * F.normalize(self.image(x), dim=1) @ F.normalize(self.text(z), dim=1).t()

    return given(module(forward, image=nn.Linear(6, 8), text=nn.Linear(5, 8)), (VALUES, OTHERS), torch.arange(24))


def _tagger():
    """Recurrence with positions first."""
    torch.manual_seed(0)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids))[0])

    source = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (14, 16), generator=source)
    ids[torch.arange(14)[:, None] >= torch.randint(4, 14, (16,), generator=source)] = 0
    model = module(forward, embed=nn.Embedding(12, 16), layer=nn.GRU(16, 16), head=nn.Linear(16, 3))
    return given(model, ids, ids % 3, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()))


check("similarities_of_all_pairs", "", _pairs)
check("positions_first", "", _tagger)


def _viewed(permuted):
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 3, 9, 8, generator=source), torch.randint(5, (6, 9, 8), generator=source)
    torch.manual_seed(0)

    def loss(outputs, targets):
        outputs = outputs.permute(0, 2, 3, 1) if permuted else outputs
        return F.cross_entropy(outputs.reshape(-1, 5), targets.flatten())

    return given(nn.Conv2d(3, 5, 3, padding=1), x, y, loss)


check("view_in_the_loss", "moved_axis", lambda: _viewed(False), lambda: _viewed(True))


def _normalized(norm, has_pattern=False):
    """Images whose targets are in their means, or in a pattern."""
    y = torch.arange(32) % 2
    shift = 2 * y[:, None, None, None]
    x = torch.randn(32, 3, 6, 6, generator=torch.Generator().manual_seed(0)) + shift
    x = x + 2 * (1 - shift) * (torch.arange(6) % 2) - shift if has_pattern else x
    torch.manual_seed(0)
    tail = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    return given(nn.Sequential(norm, nn.Conv2d(3, 8, 3, padding=1), *tail), x, y)


check(
    "instance_norm_of_means",
    "invariant_outputs",
    lambda: _normalized(nn.InstanceNorm2d(3)),
    lambda: _normalized(nn.BatchNorm2d(3)),
    r"where=\('0',\)",
)
check("instance_norm_of_patterns", "", lambda: _normalized(nn.InstanceNorm2d(3), has_pattern=True))


def _of_two(first=(), last=()):
    source = torch.Generator().manual_seed(0)
    model = nn.Sequential(*first, layers(2, 32, 4), *last)
    return given(model, torch.randn(40, 2, generator=source), 3 * torch.randn(40, 4, generator=source), F.mse_loss)


check("norm_over_two_values", "norm_of_two", lambda: _of_two([nn.LayerNorm(2)]), _of_two)
check(
    "norm_of_the_outputs",
    "normalized_outputs",
    lambda: _of_two(last=[nn.LayerNorm(4)]),
    lambda: _of_two(last=[nn.LayerNorm(4), nn.Linear(4, 4)]),
)


def _mixed(mix):
    """Messages along the edges of a graph."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 32), nn.Linear(32, 3)
    x, edges = torch.randn(40, 6), torch.randint(40, (2, 100))

    def forward(self, x, edges):
        return self.second(mix(F.relu(self.first(x)), edges))

    return given(module(forward, first=first, second=second), (x, edges), torch.arange(40) % 3)


def _multiplied(x, edges):
    matrix = torch.zeros(len(x), len(x))
    matrix[edges[0], edges[1]] = 0.5
    return x + matrix @ x


checks(
    {
        "sum_over_edges": ("", lambda x, e: x + torch.zeros_like(x).index_add_(0, e[1], x[e[0]])),
        "scatter_over_edges": (
            "",
            lambda x, e: x.scatter_add(0, e[1][:, None].expand(-1, x.shape[1]), x.index_select(0, e[0])),
        ),
        "matrix_of_edges": ("", _multiplied),
        "attention_of_all_nodes": ("mixes_examples", lambda x, e: x + torch.softmax(x @ x.t(), 1) @ x + 0 * e.sum()),
    },
    _mixed,
)
