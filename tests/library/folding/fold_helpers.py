"""Small networks to fold, and the comparison with what they were."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from written_networks import Written

import normless as nl


class Net(Written):
    """In double precision, its batch norms drawn at random."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **modules: nn.Module) -> None:
        super().__init__(run, **modules)
        randomize(self)
        self.double()


@torch.no_grad()
def randomize(model: nn.Module, *, shift: bool = True) -> Any:
    """Draw the statistics and parameters of every batch norm, all different; without a shift, μ = β = 0."""
    for norm in model.modules():
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.normal_().mul_(shift)
            norm.running_var.uniform_(0.5, 3)
            if norm.weight is not None:
                norm.weight.normal_()
            if norm.bias is not None:
                norm.bias.normal_().mul_(shift)
    return model


@torch.no_grad()
def filled(network: nn.Module, std: float = 0.2) -> Any:
    """The network in double precision and evaluation, every parameter and statistic drawn at random."""
    network = network.double().eval()
    for parameter in network.parameters():
        parameter.normal_(std=std)
    for name, buffer in network.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
    return network


def folded(model: nn.Module, x: Tensor) -> tuple[Any, nl.affine.FoldReport]:
    """The network folded, after the checks that hold for every one.

    In eval mode it gives what the original does, in train mode what the original with frozen norms does, and the
    original is as it was.
    """
    before = deepcopy(model.state_dict())
    new, report = nl.fold(model, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in new.modules()] == [module.training for module in model.modules()]
    frozen = nl.freeze(model)
    for training in (False, True):
        outputs = []
        for net in (frozen.train() if training else model.eval(), new.train(training)):
            torch.manual_seed(3)
            outputs.append(net(x))
        torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    assert not any(isinstance(module, _BatchNorm) for module in new.modules())
    return new, report


def fate(report: nl.affine.FoldReport, path: str = "norm") -> str:
    """What the report says of one norm, without its name."""
    (found,) = (norm for norm in report.norms if norm.path == path)
    return str(found).removeprefix(f"{path}: ")
