"""A conversion is whole or refused: no norm runs on unseen, every sum is accounted for, as often as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gallery import ROWS
from gallery.odd import Autocast, Checkpointed, NoGrad
from streams_of_networks import IMAGES, WIDTH, Block, Network
from torch import Tensor, nn

import normless as nl
from normless.errors import EvaluationOnlyWarning

close = torch.testing.assert_close


class OwnCheckpoint(torch.autograd.Function):
    """A checkpoint as guided-diffusion writes it."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor, *weights: Tensor) -> Any:
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, (x, *ctx.weights), gradient, allow_unused=True)


class OwnFunction(Network):
    """Blocks in a checkpoint function of the network's own."""

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = OwnCheckpoint.apply(block, x, *block.parameters())
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("kind", [Autocast, NoGrad, Checkpointed, OwnFunction])
def test_regions_of_forward_code_are_read_as_if_they_were_not_there(kind: type[Network]) -> None:
    model, plain = kind(), Network()
    plain.load_state_dict(model.state_dict())
    maps = [nl.residual_map(net, IMAGES) for net in (model, plain)]
    assert maps[0] == maps[1]
    nets = zip((model, plain), maps, strict=True)
    ours, theirs = (nl.convert(net, "skipinit(alpha=1)", IMAGES, residual_map=found) for net, found in nets)
    assert [*map(str, ours.normless.plan)] == [*map(str, theirs.normless.plan)]  # type: ignore[arg-type, union-attr]
    tolerance = 0.05 if kind is Autocast else 1e-6
    close(ours(IMAGES), theirs(IMAGES), atol=tolerance, rtol=tolerance)


class InTrainingOnly(Block):
    """Normalizes in training by a function without parameters."""

    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        if self.training:
            y = F.instance_norm(y)
        return x + self.conv2(F.relu(y))


class AddedAndMultiplied(Block):
    """Adds and multiplies by a learned factor in one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(WIDTH, 1, 1))

    def forward(self, x: Tensor) -> Any:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return torch.addcmul(x, y, self.factor)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (InTrainingOnly, "still runs in training mode in blocks.0, a norm that the residual map does not have"),
        (AddedAndMultiplied, "blocks.0: addcmul adds and multiplies at once"),
    ],
)
def test_half_a_conversion_is_refused_unless_it_is_asked_for(block: Callable[[], nn.Module], reason: str) -> None:
    model = Network().eval()
    model.blocks[0] = block().eval()
    with pytest.raises(nl.errors.UnresolvedStructureError, match=reason):
        nl.convert(model, "skipinit", IMAGES)
    net: Any = nl.convert(model, "skipinit", IMAGES, allow_partial=True)
    assert isinstance(net.blocks[1].norm1, nn.Identity)
    assert torch.isfinite(net(IMAGES)).all()


def test_a_block_that_runs_three_times_counts_three_times() -> None:
    model, (x,) = ROWS["Tied"].network(), ROWS["Tied"].example()[0]
    net = nl.convert(model, "skipinit(alpha=1/sqrt(L), keep_scale=False)", x)
    assert net.blocks[0].conv2.get_parameter("multiplier").item() == pytest.approx(3**-0.5)
    block, h = model.blocks[0], model.stem(x)
    for _ in range(3):
        h = h + 3**-0.5 * block.conv2(F.relu(block.conv1(h)))
    torch.testing.assert_close(net(x), model.head(h.mean((2, 3))))


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
