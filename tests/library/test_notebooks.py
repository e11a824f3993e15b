"""How results show themselves: a short `repr`, and an escaped table in notebooks."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar

X, Y = torch.randn(8, 3, 8, 8), torch.arange(8) % 3
SHOWN = ("residual_map", "plan", "probe", "diagnose", "watch")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, _: object) -> None:
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _shown(name: str, depth: int) -> Any:
    net = resnet_cifar(depth, classes=3)
    if name == "residual_map":
        return nl.residual_map(net)
    if name == "plan":
        return nl.plan(net, "fixup")
    if name == "watch":
        return nl.watch(net)
    return getattr(nl, name)(net, (X, Y))


@pytest.mark.parametrize("name", SHOWN)
def test_a_result_has_a_short_repr_and_a_table(name: str) -> None:
    shown = _shown(name, 8)
    assert len(repr(shown)) < 200
    assert "\n" not in repr(shown)
    assert repr(shown).startswith(type(shown).__name__)
    if name != "watch":
        tags = _Tags()
        tags.feed(shown._repr_html_())
        assert not tags.open
        assert len(shown._repr_html_()) < 20_000


@pytest.mark.parametrize("name", ["residual_map", "plan"])
def test_the_table_of_a_deep_network_is_short(name: str) -> None:
    tags = _Tags()
    tags.feed(_shown(name, 290)._repr_html_())
    assert tags.rows < 50


def test_names_of_the_user_are_escaped() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"<b>": nn.Conv2d(3, 3, 1), "&": nn.BatchNorm2d(3)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(x + self.parts["&"](self.parts["<b>"](x)))

    shown: Any
    for shown in (nl.plan(Net(), "none", X), nl.probe(Net(), (X, X), "activations", loss=F.mse_loss)):
        html = shown._repr_html_()
        assert "<b>" not in html
        assert "&lt;b&gt;" in html


def test_the_package_lists_its_public_names_alone() -> None:
    assert set(dir(nl)) == set(vars(nl)["__all__"])
    assert not [name for name in dir(nl) if name.startswith("_") and name != "__version__"]
