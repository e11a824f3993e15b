"""Networks as people write them: shared modules, couplings, computed weights, old idioms; converted or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from streams_of_networks import IMAGES, WIDTH, Block, Network, Siamese, conv
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import normless as nl
from normless.errors import EvaluationOnlyWarning
from normless.nn.affine import with_scalars


def test_one_edit_serves_both_streams_of_a_siamese_network() -> None:
    mapped = nl.residual_map(Siamese(), IMAGES)
    assert [block.name for block in mapped.blocks] == ["blocks.0#1", "blocks.1#1", "blocks.0#2", "blocks.1#2"]
    scaled = {str(one) for one in nl.plan(Siamese(), "fixup", IMAGES) if "RescaleBranches" in str(one)}
    assert scaled == {
        f"RescaleBranches(gain=1.0): blocks.{block}.conv{layer}: weight × {2**-0.5:.4g}"
        for block in (0, 1)
        for layer in (1, 2)
    }
    model = Siamese()
    net = nl.convert(model, "skipinit(alpha=0.3, keep_scale=False)", IMAGES)
    other = torch.randn(4, 3, 8, 8)

    def alone(x: Tensor) -> Tensor:
        h = model.stem(x)
        for block in model.blocks:
            h = h + 0.3 * block.conv2(F.relu(block.conv1(h)))
        return model.head(h.mean((2, 3)))

    torch.testing.assert_close(net(IMAGES, other), alone(IMAGES) - alone(other))


class OptionA(nn.Module):
    """A block whose shortcut takes every second pixel and new channels of zero, as early code for CIFAR has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(WIDTH, 2 * WIDTH, 2), conv(2 * WIDTH, 2 * WIDTH)
        self.norm1, self.norm2 = nn.BatchNorm2d(2 * WIDTH), nn.BatchNorm2d(2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        short = F.avg_pool2d(x, 1, 2)
        zeros = torch.Tensor(short.size(0), WIDTH, short.size(2), short.size(3)).zero_()
        return torch.cat([short.data, zeros], 1) + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))


def test_data_in_forward_code_is_followed() -> None:
    model = nn.Sequential(conv(3), Block(), OptionA())
    mapped = nl.residual_map(model, IMAGES, strict=True)
    assert [(block.name, block.identity_skip) for block in mapped.blocks] == [("1", True), ("2", False)]
    assert torch.isfinite(nl.convert(model, "fixup", IMAGES)(IMAGES)).all()


def pruned(layer: nn.Conv2d) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.3)  # type: ignore[no-untyped-call]
    return layer


class LowRank(nn.Module):
    """A layer with a low-rank adapter that starts at zero (Hu et al. 2021)."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Conv2d(WIDTH, 2, 1, bias=False), nn.Conv2d(2, WIDTH, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


WRAPPERS: list[Callable[[nn.Conv2d], nn.Module]] = [
    weight_norm,
    spectral_norm,
    pruned,
    LowRank,
    parametrizations.weight_norm,
    parametrizations.orthogonal,
    lambda layer: nn.ConvTranspose2d(WIDTH, WIDTH, 3, padding=1),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the old weight_norm's own
@pytest.mark.parametrize(
    ("wrap", "scheme"),
    [
        *((wrap, "skipinit(alpha=1)") for wrap in WRAPPERS),
        *((wrap, "fixup") for wrap in (weight_norm, spectral_norm, LowRank, pruned)),
        (parametrizations.weight_norm, "ghost_batch_norm(size=2)"),
    ],
)
def test_layers_whose_weight_is_computed(wrap: Callable[[nn.Conv2d], nn.Module], scheme: str) -> None:
    model = Network(wrap)
    before = deepcopy(dict(model.state_dict()))
    mapped = nl.residual_map(model, IMAGES, strict=True)
    assert [block.name for block in mapped.blocks] == ["blocks.0", "blocks.1"]
    if (wrap, scheme) == (spectral_norm, "fixup"):
        with pytest.raises(nl.UnsupportedEditError, match=r"blocks\.0\.conv1.*divided by its own norm"):
            nl.convert(model, scheme, IMAGES)
        return
    net = nl.convert(model, scheme, IMAGES).eval()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    net, images = net.double(), IMAGES.double()  # spectral norm's weights may be large: single precision cancels
    alone = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(net(images), alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("part", ["input_bias", "output_bias", "multiplier"])
def test_scalars_around_a_layer_keep_its_class_and_its_parameters(part: str) -> None:
    layer = nn.ConvTranspose2d(WIDTH, 3, 3)
    around = with_scalars(layer)
    around.add_part(part, torch.tensor([0.7]))
    x = torch.randn(2, WIDTH, 5, 5)
    expected = {
        "input_bias": lambda: layer(x + 0.7),
        "output_bias": lambda: layer(x) + 0.7,
        "multiplier": lambda: 0.7 * layer(x),
    }[part]()
    assert isinstance(around, nn.ConvTranspose2d)
    assert {*around.state_dict()} == {"weight", "bias", part}
    for one in (around, deepcopy(around), pickle.loads(pickle.dumps(around))):
        torch.testing.assert_close(one(x), expected)


def on_meta() -> tuple[nn.Module, Tensor]:
    with torch.device("meta"):
        return Network(), torch.empty(4, 3, 8, 8)


@pytest.mark.parametrize("scheme", ["fixup", "ghost_batch_norm(size=2)"])
def test_networks_without_values_and_graph_modules_convert(scheme: str) -> None:
    model, images = on_meta()
    assert nl.convert(model, scheme, images)(images).shape == (4, 5)
    traced = torch.fx.symbolic_trace(Network())
    net = nl.convert(traced, scheme, IMAGES)
    assert not any(isinstance(one, nn.BatchNorm2d) for one in net.modules()) or "ghost" in scheme
    assert torch.isfinite(net(IMAGES)).all()


class Volume(nn.Module):
    """A block of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(2, 2, 3, padding=1), nn.BatchNorm3d(2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x)).relu()


@pytest.mark.parametrize("scheme", ["ghost_batch_norm(size=2)", "partial_batch_norm"])
def test_batch_norms_of_volumes_have_variants(scheme: str) -> None:
    x = torch.randn(2, 2, 4, 4, 4)
    model = nn.Sequential(nn.Conv3d(2, 2, 1), Volume())
    net: Any = nl.convert(model, scheme, x)
    assert isinstance(net[1].norm, nn.BatchNorm3d)
    # With one ghost batch, on the first batch and with all parts each of them is batch norm.
    torch.testing.assert_close(net(x), model(x))


def test_a_converted_network_needs_no_inputs_a_second_time() -> None:
    net = nl.convert(Network(), "skipinit", IMAGES)
    rates = {"lr": 0.1, "weight_decay": 1e-4}
    expected = [(group["name"], len(group["params"])) for group in nl.param_groups(net, IMAGES, **rates)]
    assert ("scalars", 2) in expected
    copies = [net, deepcopy(net), pickle.loads(pickle.dumps(net)), torch.compile(net, backend="eager")]
    for one in (*copies, nn.DataParallel(net)):
        assert [(group["name"], len(group["params"])) for group in nl.param_groups(one, **rates)] == expected
    assert nl.residual_map(net) == nl.residual_map(net, IMAGES)
    with pytest.raises(nl.UnresolvedStructureError, match="pass example inputs"):
        nl.param_groups(Network(), **rates)


class ChosenRows(nn.Module):
    """Blocks over the rows that a value selects: how many there are no graph knows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0].gt(0).nonzero()[:, 0]
        x = self.stem(x)[rows]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x)).relu()
        x = F.pad(x, (0, 0, 0, 1))
        return self.head(x)


def test_sizes_that_depend_on_values_are_unknown() -> None:
    rows = torch.randn(6, 4)
    net = ChosenRows()
    assert [block.branch for block in nl.residual_map(net, rows).blocks] == [("layers.0",), ("layers.1",)]
    opened = nl.convert(net, "skipinit(alpha=1)", rows)
    other = torch.randn(9, 4)
    x = opened.stem(other)[other[:, 0] > 0]
    for layer in opened.layers:
        x = x + layer(x).relu()
    torch.testing.assert_close(opened(other), opened.head(torch.cat([x, torch.zeros(1, 8)])))


class Joined(nn.Module):
    """x + cat(f(x), g(x)) of 3 and 5 channels, g with a ReLU at its end or without."""

    def __init__(self, ends_in_relu: bool = False) -> None:
        super().__init__()
        self.stem, self.norm = conv(), nn.BatchNorm2d(WIDTH)
        self.f, self.g = conv(outputs=3), conv(outputs=WIDTH - 3)
        self.end = nn.ReLU() if ends_in_relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.stem(x)))
        return x + torch.cat([self.f(h), self.end(self.g(h))], 1)


def test_a_branch_that_ends_in_a_concatenation_starts_at_zero_as_a_whole() -> None:
    """Of a ReLU after a weight of zero the slope is zero, so that Fixup would end the training of g."""
    model, x = nn.Sequential(conv(3), Joined(), Joined()), torch.randn(2, 3, 8, 8)
    net = nl.convert(model, "fixup", x)
    torch.testing.assert_close(net(x), net[0](x))
    flat = nn.Sequential(conv(3), Joined(True), Joined(True))
    with pytest.raises(nl.UnsupportedEditError, match=r"1\.g\.weight.*never get a gradient"):
        nl.convert(flat, "fixup", x)
    assert nl.convert(flat, "skipinit", x) is not None
    with pytest.raises(nl.UnsupportedEditError, match="1: its branch ends in several weight layers side by side"):
        nl.convert(model, "layer_scale", x)


def test_a_conversion_that_no_training_pass_verifies_says_so() -> None:
    class Targets(Network):
        def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
            logits = super().forward(x)
            return logits if not self.training else nn.functional.cross_entropy(logits, target)  # type: ignore[arg-type]

    images = torch.randn(2, 3, 8, 8)
    said = "The conversion is verified in evaluation only.*in training mode"
    with pytest.warns(EvaluationOnlyWarning, match=said) as warned:
        nl.convert(Targets(), "skipinit", images)
    assert [warning.filename for warning in warned] == [__file__]


def test_a_network_without_a_classifier_takes_fixup() -> None:
    model = nn.Sequential(conv(3), Block(), Block())
    changes = [str(one) for one in nl.plan(model, "fixup", IMAGES)]
    assert any("no classifier" in change for change in changes)
    net = nl.convert(model, "fixup", IMAGES)
    torch.testing.assert_close(net(IMAGES), model[0](IMAGES))


class Tied(Network):
    """One block that runs three times."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = self.blocks[0](x)
        return self.head(x.mean((2, 3)))


def test_a_block_that_runs_three_times_counts_three_times() -> None:
    model = Tied()
    net = nl.convert(model, "skipinit(alpha=1/sqrt(L), keep_scale=False)", IMAGES)
    assert net.blocks[0].conv2.get_parameter("multiplier").item() == pytest.approx(3**-0.5)
    block, h = model.blocks[0], model.stem(IMAGES)
    for _ in range(3):
        h = h + 3**-0.5 * block.conv2(F.relu(block.conv1(h)))
    torch.testing.assert_close(net(IMAGES), model.head(h.mean((2, 3))))
