"""Every scheme on networks that are not ours: what holds of it there, or the sentence why it has no place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import timm
import torch
import torchvision
from conformance_cases import INDEPENDENT, SCHEME_TEXTS, WITHOUT_NORMS
from torch import Tensor, nn

import normless as nl


class Functional(nn.Module):
    """Pre-activation blocks in the style of many scripts: functions, one shared ReLU, sums in place, at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Linear(8, 5)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in range(2):
            h = self.convs[2 * block](self.relu(self.norms[2 * block](x)))
            h = self.convs[2 * block + 1](torch.relu(self.norms[2 * block + 1](h)))
            h += x
            x = h
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Foreign:
    """A network of someone else, one batch for it, and its number of blocks."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    blocks: int


FOREIGN = {
    "torchvision resnet18": Foreign(lambda: torchvision.models.resnet18(num_classes=10), (3, 32, 32), 8),
    "timm test_vit": Foreign(lambda: timm.create_model("test_vit", num_classes=10), (3, 160, 160), 12),
    "functional": Foreign(Functional, (3, 8, 8), 2),
}
VIT, RESNET, FUNCTIONAL = "timm test_vit", "torchvision resnet18", "functional"
_BATCH_NORMS = "it is a LayerNorm, not a batch norm"
_AFTER = "no residual sum is followed by an activation"
_TRANSFORMERS = "DeepNorm is for transformers"
REFUSALS = {
    **{
        (f"{family}_norm", VIT): _BATCH_NORMS
        for family in ("ghost_batch", "partial_batch", "alternating_batch", "plain_batch", "frozen_batch", "group")
    },
    ("zero_gamma", VIT): "an operation that is not a layer follows the last norm of its branch",
    ("zero_gamma", FUNCTIONAL): "at γ = 0 the activation between them passes no gradient",
    ("zeroinit_v1", VIT): _AFTER,
    ("zeroinit_v1", FUNCTIONAL): _AFTER,
    # Batch norm takes the channels from the second axis, where a transformer has its tokens.
    ("norm_on_skip", VIT): "the network does not run",
    # Attention divides its projection into heads.
    ("remove_branches", VIT): "the network does not run",
    ("nf_resnet", VIT): "its branch does not end in a weight layer",
    **{("layer_norm", network): "this is the scheme of transformers" for network in (RESNET, FUNCTIONAL)},
    **{("deepnorm", network): _TRANSFORMERS for network in (VIT, RESNET, FUNCTIONAL)},
    **{("admin", network): "Admin is for transformers" for network in (VIT, RESNET, FUNCTIONAL)},
    **{
        (scheme, one): "it has no attention" for scheme in ("qk_norm", "soft_capping") for one in (RESNET, FUNCTIONAL)
    },
    ("tailored_activations", VIT): "the correlation after its parameter is not known",
    ("tailored_activations", RESNET): "it reads more than outputs of weight layers",
    **{("t_fixup", network): "transformers have none on a branch" for network in (RESNET, FUNCTIONAL)},
}
WITH_MULTIPLIERS = {"skipinit", "zeroinit", "zeroinit_v1", "regularized_skipinit", "fixup", "rezero"}
QUICK = {"skipinit", "fixup", "group_norm"}
PAIRS = [
    pytest.param(scheme, network, marks=() if scheme in QUICK else pytest.mark.slow)
    for scheme in SCHEME_TEXTS
    if "(" not in scheme
    for network in FOREIGN
]


@pytest.mark.parametrize(("scheme", "network"), PAIRS)
def test_a_scheme_holds_or_says_why_not(
    scheme: str, network: str, record_property: Callable[[str, object], None]
) -> None:
    torch.manual_seed(0)
    foreign = FOREIGN[network]
    model, x = foreign.build().train(), torch.randn(4, *foreign.shape)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if (scheme, network) in REFUSALS:
        with pytest.raises(nl.UnsupportedEditError, match=REFUSALS[scheme, network]):
            nl.convert(model, scheme, x)
        # For the table that is printed behind the suite.
        record_property("refusal", True)
        return
    net = nl.convert(model, scheme, x)
    assert isinstance(net, type(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    found = nl.residual_map(net, x)
    assert found.depth == (foreign.blocks if scheme != "remove_branches" else 0)
    if scheme in WITHOUT_NORMS:
        assert found.norms == {}
    _learns(net, x)
    if scheme in INDEPENDENT and scheme in WITHOUT_NORMS:
        assert not nl.mixes_examples(net, x)
    if scheme in WITH_MULTIPLIERS:
        assert sum(name.endswith("multiplier") for name, _ in net.named_parameters()) == foreign.blocks


def _learns(net: nn.Module, x: Tensor) -> None:
    """Every parameter has a gradient after one step, all of them finite."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), torch.arange(len(x)))
        loss.backward()
        optimizer.step()
    assert bool(torch.isfinite(loss))
    idle = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    assert idle == []
