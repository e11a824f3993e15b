"""Norms of each example in place of batch norms, wherever the examples lie: a batch is its examples, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from normless.errors import UnsupportedEditError

Forward = Callable[[Any, Tensor], Tensor]
SERIES, IMAGES, VIDEOS = torch.randn(4, 6, 3), torch.randn(4, 3, 6, 6), torch.randn(4, 5, 3, 6, 6)


def by_steps(m: Any, x: Tensor) -> Tensor:
    """The steps of a series, stacked as the channels' last axis."""
    return m.last(m.norm(torch.stack([m.first(step) for step in x.unbind(1)], 2)).mean(2))


def by_windows(m: Any, x: Tensor) -> Tensor:
    """Windows of images as further examples, and back, as in a Swin transformer."""
    h = m.first(x).reshape(len(x), 8, 2, 3, 2, 3).permute(0, 2, 4, 1, 3, 5).reshape(-1, 8, 3, 3)
    return m.last(m.norm(h).relu()).unflatten(0, (len(x), 4)).mean((1, 3, 4))  # type: ignore[no-untyped-call]


def by_attention(m: Any, x: Tensor) -> Tensor:
    """Attention before the norm, whose examples stay the first axis of its products."""
    h = m.first(x)
    h = torch.einsum("bqk,bkc->bqc", (h @ h.mT).softmax(-1), h) + F.scaled_dot_product_attention(h, h, h)
    return m.last(m.norm(h.transpose(1, 2)).transpose(1, 2))


def by_recurrence(m: Any, x: Tensor) -> Tensor:
    """A recurrent layer whose first axis is time."""
    h, _ = m.recurrent(m.first(x).transpose(0, 1))
    return m.last(m.norm(h.permute(1, 2, 0)).mean(2))


def of_vectors(m: Any, x: Tensor) -> Tensor:
    """The tokens of all examples as vectors."""
    return m.last(m.norm(m.first(x).flatten(0, 1)).relu()).view(*x.shape[:2], 2)


def linear(**parts: nn.Module) -> dict[str, Any]:
    return {"first": nn.Linear(3, 8), "norm": nn.BatchNorm1d(8), "last": nn.Linear(8, 2), **parts}


def conv() -> dict[str, Any]:
    return {"first": nn.Conv2d(3, 8, 1), "norm": nn.BatchNorm2d(8), "last": nn.Conv2d(8, 2, 1)}


def example_first() -> list[Any]:
    """Networks in which each example is on the first axis where the norm is, perhaps among others."""
    rows: dict[str, tuple[Forward, dict[str, Any], Tensor]] = {
        "tokens": (lambda m, x: m.last(m.norm(m.first(x).transpose(1, 2)).mT), linear(), SERIES),
        "vectors of tokens": (of_vectors, linear(), SERIES),
        "steps of videos": (
            lambda m, x: m.last(m.norm(m.first(x.flatten(0, 1))).relu()).unflatten(0, x.shape[:2]),
            conv(),
            VIDEOS,
        ),
        "time first, then examples": (
            lambda m, x: m.last(m.norm(m.first(x.transpose(0, 1).flatten(0, 1)))).unflatten(0, (5, len(x)))[-1],
            conv(),
            VIDEOS,
        ),
        "steps stacked": (by_steps, linear(), SERIES),
        "windows": (by_windows, conv(), IMAGES),
        "two views": (
            lambda m, x: m.last(m.norm(m.first(torch.cat([x, x.flip(-1)]))).relu()).chunk(2)[0],
            conv(),
            IMAGES,
        ),
        "attention": (by_attention, linear(), SERIES),
        "recurrence": (by_recurrence, linear(recurrent=nn.GRU(8, 8)), SERIES),
        "there and back": (
            lambda m, x: m.last(m.norm(m.first(x).permute(1, 2, 0).permute(2, 1, 0)).mean(2)),
            linear(),
            SERIES,
        ),
    }
    return [pytest.param(*row, id=name) for name, row in rows.items()]


@pytest.mark.parametrize("scheme", ["group_norm(groups=2)", "instance_norm", "layer_norm(replace=True)"])
@pytest.mark.parametrize(("forward", "parts", "x"), example_first())
def test_a_batch_is_its_examples(forward: Forward, parts: dict[str, Any], x: Tensor, scheme: str) -> None:
    """The oracle is a loop over the examples."""
    model = Written(forward, **parts)
    if scheme == "instance_norm" and forward is of_vectors:
        with pytest.raises(UnsupportedEditError, match="it reads vectors"):
            nl.convert(model, scheme, x)
        return
    net = nl.convert(model, scheme, x).eval()
    torch.testing.assert_close(net(x), torch.cat([net(one[None]) for one in x]), rtol=1e-4, atol=1e-5)


def elsewhere() -> list[Any]:
    """Networks in which the norm's first axis is not that of the examples, and the axis that the message names."""
    points = torch.randn(20, 3)
    rows: dict[str, tuple[Forward, Tensor, str]] = {
        "points packed": (lambda m, x: m.last(m.norm(m.first(x).t()[None])[0].t().relu()), points, "axis 2"),
        "[T, C, B]": (lambda m, x: m.last(m.norm(m.first(x).permute(1, 2, 0)).mean(0).t()), SERIES, "axis 2"),
        "[T, C, B] of one example": (
            lambda m, x: m.last(m.norm(m.first(x).permute(1, 2, 0)).mean(0).t()),
            SERIES[:1],
            "axis 2",
        ),
        "[1, C, B·T]": (
            lambda m, x: m.last(m.norm(m.first(x).flatten(0, 1).t()[None])[0].t()).view(*x.shape[:2], 2),
            SERIES,
            "axis 2",
        ),
        "stacked along the last axis": (
            lambda m, x: m.last(m.norm(torch.stack([m.first(step).t() for step in x.unbind(1)])).mean(0).t()),
            SERIES,
            "axis 2",
        ),
        "by einsum": (
            lambda m, x: m.last(m.norm(torch.einsum("btc->tcb", m.first(x))).mean(0).t()),
            SERIES,
            "axis 2",
        ),
        "selected": (
            lambda m, x: m.last(m.norm(m.first(x[torch.arange(4) % 4 > -1].mean(1)).t()[None])[0].t()),
            SERIES,
            "axis 2",
        ),
    }
    return [pytest.param(*row, id=name) for name, row in rows.items()]


@pytest.mark.parametrize("scheme", ["group_norm(groups=2)", "instance_norm", "layer_norm(replace=True)"])
@pytest.mark.parametrize(("forward", "x", "words"), elsewhere())
def test_statistics_over_several_examples_are_refused(forward: Forward, x: Tensor, words: str, scheme: str) -> None:
    model = Written(forward, **linear()).eval()
    with pytest.raises(
        UnsupportedEditError, match=rf"at norm, a BatchNorm1d: its input has the \d+ examples .*{words}.*only="
    ):
        nl.convert(model, scheme, x)
    with pytest.raises(UnsupportedEditError, match="over several examples"):
        nl.plan(model, scheme, x)


def test_packed_points_with_offsets_are_refused() -> None:
    """Clouds of other lengths behind each other, by their ends."""

    def forward(m: Any, points: Tensor, ends: Tensor) -> Tensor:
        h = m.norm(m.first(points).t()[None])[0].t().relu()
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        means = [h[start:end].mean(0) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return m.last(torch.stack(means))

    model = Written(forward, **linear()).eval()
    with pytest.raises(UnsupportedEditError, match=r"at norm, .*group norm there would take its"):
        nl.convert(model, "group_norm", torch.randn(20, 3), torch.tensor([5, 12, 20]))


def test_a_layer_norm_of_features_takes_the_place_of_an_rms_norm_anywhere() -> None:
    """Its statistics are of each position."""
    model = Written(lambda m, x: m.last(m.norm(m.first(x).transpose(0, 1)).mean(0)), **linear(norm=nn.RMSNorm(8)))
    net: Any = nl.convert(model, "layer_norm(replace=True)", SERIES)
    assert isinstance(net.norm, nn.LayerNorm)
