"""A row of the gallery and its conversion by a scheme, and what the checks of the matrix do with a network."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gallery import Row
from gallery.row import floating
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import normless as nl
from matrix.scheme_facts import Scheme
from normless._internal.copying import copied
from normless.errors import NormlessError

TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3}


class Subject:
    """A network of the gallery: built and mapped once; whoever changes it takes a copy."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.model = row.network()
        self.inputs, self.kwargs = row.example()

    @cached_property
    def found(self) -> nl.ResidualMap:
        """Its map in training mode."""
        return nl.residual_map(self.model, *self.inputs, **self.kwargs)

    def convert(self, scheme: str) -> nn.Module:
        """A conversion, always of the same random numbers."""
        torch.manual_seed(2)
        return nl.convert(self.model, scheme, *self.inputs, residual_map=self.found, **self.kwargs)

    def run(self, net: nn.Module, dtype: torch.dtype = torch.float32, part: slice | None = None) -> list[Tensor]:
        """The outputs on the example inputs, or on a part of the batch, always of the same random numbers."""
        inputs, kwargs = tree_map(lambda value: _given(value, dtype, part), (self.inputs, self.kwargs))
        seed()
        return floating(net(*inputs, **kwargs))

    def loss(self, net: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
        """The loss of the row's healthy training."""
        inputs, kwargs = tree_map(lambda value: _given(value, dtype, None), (self.inputs, self.kwargs))
        seed()
        return self.row.loss(net(*inputs, **kwargs))

    @cached_property
    def batch(self) -> int:
        """The number of examples."""
        return next(len(leaf) for leaf in tree_leaves((self.inputs, self.kwargs)) if isinstance(leaf, Tensor))

    @cached_property
    def dtype(self) -> torch.dtype:
        """Double precision where the network runs in it."""
        try:
            self.run(copied(self.model).double(), torch.float64)
        except (RuntimeError, TypeError):
            return torch.float32
        return torch.float64

    @cached_property
    def varies(self) -> bool:
        """Whether a forward pass in training draws random numbers or, as spectral norm, changes the next."""
        net = copied(self.model)
        with torch.no_grad():
            before = torch.get_rng_state(), random.getstate()
            net(*self.inputs, **self.kwargs)
            after = torch.get_rng_state(), random.getstate()
            drawn = not torch.equal(before[0], after[0]) or before[1] != after[1]
            return drawn or difference(self.run(net), self.run(net)) > 0

    @cached_property
    def is_per_example(self) -> bool:
        """Whether the network in evaluation computes each example on its own as it was written."""
        net = copied(self.model).to(self.dtype).eval()
        return self.row.batched and not self.mixes(net)

    def mixes(self, net: nn.Module) -> str:
        """By how much the outputs of a batch differ from those of its examples, or nothing."""
        dtype = next((one.dtype for one in net.parameters()), torch.float32)
        with torch.no_grad():
            together = [part for part in self.run(net, dtype) if part.dim() and len(part) == self.batch]
            for at in range(self.batch):
                alone = self.run(net, dtype, slice(at, at + 1))
                gap = difference(alone, [part[at : at + 1] for part in together])
                if gap > max(TOLERANCES[dtype], self.row.rounding):
                    return f"example {at} alone differs by {gap:.1e}"
        return ""


@dataclass
class Case:
    """A network and a scheme."""

    subject: Subject
    scheme: Scheme

    @property
    def row(self) -> Row:
        """The row of the gallery."""
        return self.subject.row

    @cached_property
    def outcome(self) -> nn.Module | NormlessError:
        """The conversion, or the refusal; another error is raised."""
        try:
            return self.subject.convert(self.scheme.text)
        except NormlessError as error:
            return error

    @property
    def net(self) -> nn.Module:
        """A copy of the conversion in training mode."""
        assert isinstance(self.outcome, nn.Module), self.outcome
        return copied(self.outcome).train()

    def opened(self) -> nn.Module:
        """A copy with noise on every parameter, so that no zero hides a mistake."""
        return perturbed(self.net)


def perturbed(net: nn.Module, size: float = 0.03) -> nn.Module:
    """The network with noise on every parameter."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return net


def seed() -> None:
    """One state of all random numbers."""
    torch.manual_seed(0)
    random.seed(0)


def _given(value: Any, dtype: torch.dtype, part: slice | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.clone() if part is None or not value.dim() else value[part].clone()
    return value.to(dtype) if value.is_floating_point() else value


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference relative to the largest value; infinite where numbers, shapes or NaNs differ."""
    if [part.shape for part in ours] != [part.shape for part in theirs]:
        return float("inf")
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if not torch.equal(one.isfinite(), other.isfinite()):
            return float("inf")
        gap = (one.double() - other.double()).nan_to_num().abs().max() if one.numel() else torch.zeros(())
        worst = max(
            worst, float(gap / other.double().nan_to_num().abs().max().clamp_min(1e-3)) if other.numel() else 0
        )
    return worst


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything that a call must leave alone: values, modes, gradients, classes, the states of random numbers."""
    state: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    state |= {f"buffer {name}": tensor.clone() for name, tensor in model.named_buffers()}
    for name, module in model.named_modules():
        state[f"mode of {name}"], state[f"class of {name}"] = module.training, type(module)
        state[f"hooks of {name}"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
    state |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    state |= {f"flag of {name}": parameter.requires_grad for name, parameter in model.named_parameters()}
    state["torch's random state"] = torch.get_rng_state()
    state["numpy's random state"] = np.random.get_state()[1].tobytes()  # noqa: NPY002 - the state that others draw from
    state["Python's random state"] = random.getstate()
    state["default type"], state["gradients"] = torch.get_default_dtype(), torch.is_grad_enabled()
    state["fused path"] = torch.backends.mha.get_fastpath_enabled()
    return state


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is no longer as it was."""
    return [name for name in before if name in after and not _equal(before[name], after[name])] + sorted(
        before.keys() ^ after.keys()
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        # Bit for bit, where a NaN equals itself.
        return type(other) is type(one) and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    return bool(one == other)
