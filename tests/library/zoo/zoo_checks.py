"""What the map of any network must hold, in train and in eval mode; each library's tests add their networks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless import residual_map
from normless.residual import Layer, ResidualBlock, ResidualMap


@dataclass(frozen=True)
class Expected:
    """What the definition of an architecture says; None where it leaves open what is a block.

    Attributes:
        blocks: those that lie in no other's branch. `inner`: the rest.
        fitted: of `blocks` those whose skip path is not the identity.
    """

    blocks: int | None
    inner: int | None = 0
    fitted: int = 0


@dataclass
class Mapped:
    """A network, its map in both modes, and what mapping it changed, which should be nothing.

    Attributes:
        maps: by whether the network was in train mode.
        changed: what is no longer as it was before.
        norms: the modules with a γ that call themselves a norm and run in a forward pass.
    """

    expected: Expected
    maps: dict[bool, ResidualMap]
    changed: list[str]
    norms: set[str]

    @classmethod
    def of(cls, model: nn.Module, *inputs: Any, expected: Expected, **named: Any) -> Mapped:
        """Map a network in train and in eval mode, and compare all of its state before and after."""
        maps = {}
        changed = []
        untouched = deepcopy(model).eval()
        # Eval mode last: what a forward pass keeps for the next, such as a cache of biases, a change of mode clears.
        for training in (True, False):
            model.train(training)
            # A mode that is not the same all through must survive as well.
            next(model.children()).eval()
            before = _state(model)
            maps[training] = residual_map(model, *inputs, **named)
            changed += _differences(before, _state(model))
        norms: set[str] = set()
        for path, module in model.named_modules():
            if "norm" in type(module).__name__.lower() and _has_gamma(module):
                module.register_forward_hook(lambda *_, path=path: norms.add(path))
        with torch.no_grad():
            outputs = [tree_leaves(one(*inputs, **named)) for one in (untouched, model)]
        if not all(_equal(one, other) for one, other in zip(*outputs, strict=True)):
            changed.append("the output")
        return cls(expected, maps, changed, norms)


class MapChecks:
    """The tests of one map; the module of a subclass provides the fixture `mapped`."""

    def test_nothing_is_changed(self, mapped: Mapped) -> None:
        assert mapped.changed == []

    def test_blocks_are_those_of_the_definition(self, mapped: Mapped) -> None:
        expected = mapped.expected
        if expected.blocks is None:
            pytest.skip("the definition leaves open what is a block")
        for found in mapped.maps.values():
            inner = len(list(found.walk())) - found.depth
            fitted = sum(not block.identity_skip for block in found.blocks)
            counted = (expected.blocks, inner if expected.inner is None else expected.inner, expected.fitted)
            assert (found.depth, inner, fitted) == counted, [block.name for block in found.walk()]

    def test_everything_is_understood_and_every_norm_that_ran_has_a_role(self, mapped: Mapped) -> None:
        for found in mapped.maps.values():
            assert found.unresolved == ()
            with_role = {layer.gamma for layer in found.layers() if layer.path in found.norms}
            assert {path for path in mapped.norms if f"{path}.weight" not in with_role} == set()

    def test_no_layer_is_in_two_places_and_names_are_distinct(self, mapped: Mapped) -> None:
        for found in mapped.maps.values():
            calls = [(layer.path, layer.call) for layer in found.layers()]
            assert len(calls) == len(set(calls))
            for block in found.blocks:
                for inner in block.inner:
                    assert set(inner.branch_layers + inner.skip_layers) <= set(block.branch_layers)
            names = [block.name for block in found.walk()]
            assert len(names) == len(set(names))

    def test_both_modes_show_the_same_blocks(self, mapped: Mapped) -> None:
        evaluated, trained = (mapped.maps[training] for training in (False, True))
        assert [_plain(block) for block in trained.blocks] == [_plain(block) for block in evaluated.blocks]
        assert trained.norms == evaluated.norms


def _has_gamma(module: nn.Module) -> bool:
    gamma = getattr(module, "weight", None)
    return isinstance(gamma, nn.Parameter) and gamma.dim() == 1


def _plain(block: ResidualBlock) -> tuple[Any, ...]:
    """A block without its dropout, and without what dropout hides: whose output a layer reads unchanged."""
    paths = (block.branch_layers, block.skip_layers, block.shared_layers, block.after_sum, *block.branches)
    layers = [tuple(_named(path)) for path in paths]
    return (block.name, block.identity_skip, block.m, layers, [_plain(inner) for inner in block.inner])


def _named(layers: tuple[Layer, ...]) -> Iterator[tuple[Any, ...]]:
    for layer in layers:
        if layer.kind != "dropout":
            yield layer.path, layer.kind, layer.call, layer.gating, layer.gamma


def _state(model: nn.Module) -> dict[str, Any]:
    """Everything that mapping a network must leave alone."""
    state: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    state |= {f"buffer {name}": tensor.clone() for name, tensor in model.named_buffers()}
    state |= {f"mode of {name}": module.training for name, module in model.named_modules()}
    state |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    state["torch's random state"] = torch.get_rng_state()
    state["numpy's random state"] = np.random.get_state()[1].tobytes()  # noqa: NPY002 - the state that others draw from
    state["Python's random state"] = random.getstate()
    return state


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    changed = [name for name in before if name in after and not _equal(before[name], after[name])]
    return changed + sorted(before.keys() ^ after.keys())


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        # Bit for bit, where a NaN equals itself; a tensor without values, as an export leaves them, equals none.
        return type(other) is type(one) and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    return bool(one == other)
