"""The α₀ of DyT and Derf found by trial steps on the example inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from written_networks import Written

import normless as nl
from normless.nn import Pointwise


def branches(classes: int = 5) -> nn.Module:
    """Pre-norm branches."""

    def forward(m: Written, x: Tensor) -> Tensor:
        h = m.stem(x)
        for norm, layer in zip(m.norms, m.layers, strict=True):
            h = h + layer(norm(h))
        return m.head(h)

    norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    return Written(forward, stem=nn.Linear(8, 16), norms=norms, layers=layers, head=nn.Linear(16, classes))


def mapped_images() -> nn.Module:
    return Written(
        lambda m, x: {"map": m.head((h := m.stem(x)) + m.conv(m.norm(h).relu()))},
        stem=nn.Conv2d(3, 6, 3, padding=1),
        norm=nn.BatchNorm2d(6),
        conv=nn.Conv2d(6, 6, 3, padding=1),
        head=nn.Conv2d(6, 2, 1),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "classes": (branches, torch.randn(12, 8)),
    "sequences": (branches, torch.randn(3, 7, 8)),
    "one value": (lambda: branches(classes=1), torch.randn(12, 8)),
    "images": (mapped_images, torch.randn(2, 3, 8, 8)),
}


def alphas(net: nn.Module) -> set[float]:
    return {round(one.alpha.item(), 6) for one in net.modules() if isinstance(one, Pointwise)}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("classes", "dyt(alpha=search)"),
        ("images", "derf(alpha=search)"),
        *(pytest.param(name, "dyt(alpha=search)", marks=pytest.mark.slow) for name in ("sequences", "one value")),
    ],
)
def test_the_candidate_of_the_lowest_loss_is_taken(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    make, x = NETWORKS[name]
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    changes = [one.what for one in nl.plan(model, scheme, x) if "trial steps" in one.what]
    net = nl.convert(model, scheme, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    (said,) = changes
    losses = {float(alpha): float(loss) for alpha, loss in re.findall(r"([\d.]+): ([\d.e+-]+|inf)", said)}
    assert alphas(net) == {min(losses, key=losses.__getitem__)}
    again = nl.convert(model, scheme, x)
    assert alphas(again) == alphas(net)
    # Weights are those of the network, not of a trial.
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items() if key in before)


def test_a_searched_network_is_saved(tmp_path: Path) -> None:
    x = torch.randn(12, 8)
    model = branches()
    net = nl.convert(model, "dyt(alpha=search)", x)
    nl.save(net, tmp_path)
    assert alphas(nl.load(tmp_path, model)) == alphas(net)


def test_what_is_refused() -> None:
    x = torch.randn(12, 8)
    with pytest.raises(nl.UnsupportedEditError, match="attention_alpha goes with a number"):
        nl.convert(branches(), "dyt(alpha=search, attention_alpha=0.2)", x)
    with pytest.raises(ValueError, match="alpha is a number or search, not 'find'"):
        nl.convert(branches(), "dyt(alpha=find)", x)
    with pytest.raises(nl.UnsupportedEditError, match="finite and not all equal"):
        nl.convert(branches(), "dyt(alpha=search)", x * float("nan"))
    mapped = nl.residual_map(branches(), x)
    with pytest.raises(nl.UnsupportedEditError, match=r"pass a batch, as in convert\(model, 'dyt\(alpha=search\)'"):
        nl.convert(branches(), "dyt(alpha=search)", residual_map=mapped)
