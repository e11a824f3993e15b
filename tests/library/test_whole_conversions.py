"""A conversion is whole or refused: no norm runs on unseen, in either mode, and every sum is accounted for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normless as nl
from normless.residual.trace import traced_map

WIDTH = 8
IMAGES = torch.randn(4, 3, 8, 8)


class Block(nn.Module):
    """x + conv(relu(norm(conv(x))))."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(WIDTH), nn.GroupNorm(2, WIDTH)

    def branch(self, x: Tensor) -> Tensor:
        """f(x)."""
        return self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Network(nn.Module):
    """A stem, two blocks, a classifier; subclasses run the middle in their own way."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Linear(WIDTH, 5)
        self.blocks = nn.Sequential(block(), Block())

    def middle(self, x: Tensor) -> Tensor:
        """The blocks."""
        return self.blocks(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.stem(x)).mean((2, 3)))


class Autocast(Network):
    """Blocks under autocast."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().middle(x).float()


class NoGrad(Network):
    """A first block without gradients."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.blocks[0](x)
        return self.blocks[1](x)


class Checkpointed(Network):
    """Checkpointed blocks, in both of torch's ways."""

    def middle(self, x: Tensor) -> Tensor:
        x = checkpoint(self.blocks[0], x, use_reentrant=True)
        return checkpoint(self.blocks[1], x, use_reentrant=False)


class OwnCheckpoint(torch.autograd.Function):
    """A checkpoint as guided-diffusion writes it."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor, *weights: Tensor) -> Any:  # type: ignore[override]
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, (x, *ctx.weights), gradient, allow_unused=True)


class OwnFunction(Network):
    """Blocks in a checkpoint function of the network's own."""

    def middle(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = OwnCheckpoint.apply(block, x, *block.parameters())  # type: ignore[no-untyped-call]
        return x


REGIONS = [Autocast, NoGrad, Checkpointed, OwnFunction]


@pytest.mark.parametrize("kind", REGIONS)
def test_regions_of_forward_code_are_read_as_if_they_were_not_there(kind: type[Network]) -> None:
    model, plain = kind(), Network()
    assert nl.residual_map(model, IMAGES) == nl.residual_map(plain, IMAGES)
    net = nl.convert(model, "fixup", IMAGES)
    assert [str(one) for one in nl.plan(model, "fixup", IMAGES)] == [
        str(one) for one in nl.plan(plain, "fixup", IMAGES)
    ]
    plain.load_state_dict(model.state_dict())
    expected = nl.convert(plain, "skipinit(alpha=1)", IMAGES)
    net = nl.convert(model, "skipinit(alpha=1)", IMAGES)
    tolerance = 0.05 if kind is Autocast else 1e-6
    torch.testing.assert_close(net(IMAGES), expected(IMAGES), atol=tolerance, rtol=tolerance)


class InTrainingOnly(Block):
    """Normalizes in training by a function without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        if self.training:
            y = F.instance_norm(y)
        return x + self.conv2(F.relu(y))


class AddedAndMultiplied(Block):
    """Adds and multiplies by a learned factor in one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(WIDTH, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x, self.branch(x), self.factor)


REFUSED: list[tuple[type[Block], str]] = [
    (InTrainingOnly, "still runs in training mode in blocks.0, a norm that the residual map does not have"),
    (AddedAndMultiplied, "blocks.0: addcmul adds and multiplies at once"),
]


@pytest.mark.parametrize(("block", "reason"), REFUSED)
def test_half_a_conversion_is_refused_unless_it_is_asked_for(block: type[Block], reason: str) -> None:
    model = Network(block).eval()
    with pytest.raises(nl.UnresolvedStructureError, match=reason):
        nl.convert(model, "skipinit", IMAGES)
    net = nl.convert(model, "skipinit", IMAGES, allow_partial=True)
    assert isinstance(net.blocks[1].norm1, nn.Identity)
    assert torch.isfinite(net(IMAGES)).all()


class Auxiliary(Network):
    """A second head that runs in training only, and a norm that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.Flatten(), nn.Linear(WIDTH * 64, 5))
        self.unused = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Any:
        x = self.middle(self.stem(x))
        logits = self.head(x.mean((2, 3)))
        return (logits, self.auxiliary(x)) if self.training else logits


@pytest.mark.parametrize("training", [False, True])
def test_norms_that_run_in_training_only_are_removed_too(training: bool) -> None:
    net = nl.convert(Auxiliary().train(training), "skipinit", IMAGES)
    assert isinstance(net.auxiliary[0], nn.Identity)
    assert isinstance(net.unused, nn.LayerNorm)
    alone = torch.cat([net.train()(image[None])[1] for image in IMAGES])
    torch.testing.assert_close(net(IMAGES)[1], alone)


class Positions(Network):
    """A layer computes from no input, in both modes, as that of relative positions does."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Linear(1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.stem(x) + self.positions(torch.ones(1)).view(1, -1, 1, 1))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize(("kind", "exports"), [(Positions, 1), (Auxiliary, 2)])
def test_a_second_export_is_made_only_for_what_runs_in_one_mode(
    kind: type[Network], exports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def traced(model: nn.Module, *inputs: Any, **kwargs: Any) -> nl.ResidualMap:
        modes.append(model.training)
        return traced_map(model, *inputs, **kwargs)

    monkeypatch.setattr("normless.residual.modes.traced_map", traced)
    nl.residual_map(kind().eval(), IMAGES)
    assert modes == [False, True][:exports]


class Generator(nn.Module):
    """Four blocks under a global skip path, as SRResNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.tail = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 3, 3, padding=1)
        self.body = nn.Sequential(
            *[Block() for _ in range(4)], nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.tail(x + self.body(x))


def test_multipliers_and_depth_are_those_of_the_blocks_under_a_global_skip() -> None:
    model = Generator()
    assert nl.residual_map(model, IMAGES).blocks[0].is_global
    inner = nl.convert(model, "skipinit(alpha=1/sqrt(L))", IMAGES)
    multipliers = {name: value.item() for name, value in inner.named_parameters() if name.endswith("multiplier")}
    assert multipliers == {f"body.{index}.conv2.multiplier": 0.5 for index in range(4)}
    outer = nl.convert(model, "skipinit(alpha=1/sqrt(L), level='outer')", IMAGES)
    assert [name for name, _ in outer.named_parameters() if name.endswith("multiplier")] == ["body.4.multiplier"]
    assert nl.scheme("skipinit", level="outer") == nl.scheme("skipinit(level='outer')")
    with pytest.raises(ValueError, match="inner or outer, not 'middle'"):
        nl.scheme("skipinit", level="middle")


class DropsLayers(Network):
    """Training leaves out blocks at random."""

    def middle(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not (self.training and random.random() < 0.5):
                x = block(x)
        return x


@pytest.mark.parametrize("seed", range(2))
def test_blocks_that_training_leaves_out_at_random_are_those_of_evaluation(seed: int) -> None:
    random.seed(seed)
    model = DropsLayers()
    net = nl.convert(model, "skipinit(alpha=0.3, keep_scale=False)", IMAGES).eval()
    h = model.stem(IMAGES)
    for block in model.blocks:
        h = h + 0.3 * block.conv2(F.relu(block.conv1(h)))
    torch.testing.assert_close(net(IMAGES), model.head(h.mean((2, 3))))
