"""Example inputs one by one or as `example_inputs=`, the same way in every function that takes them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from written_networks import Written

import normless as nl
from normless.cli._inspection import inspect_network
from normless.errors import InputsError


def gained(m: Written, x: Tensor, gain: Tensor) -> Tensor:
    h = m.stem(x)
    return m.head((h + gain * m.conv(torch.relu(m.norm(h)))).mean((2, 3)))


def network() -> nn.Module:
    """A residual network of two arguments that does not state its structure."""
    layers = {"stem": nn.Conv2d(3, 4, 3, padding=1), "conv": nn.Conv2d(4, 4, 3, padding=1), "head": nn.Linear(4, 2)}
    return Written(gained, **layers, norm=nn.BatchNorm2d(4))


def with_group_norm(model: nn.Module) -> nn.Module:
    """A copy with a norm that a removal freezes."""
    copy = deepcopy(model)
    copy.norm = nn.GroupNorm(2, 4)
    return copy


TAKERS: dict[str, Callable[..., Any]] = {
    "residual_map": nl.residual_map,
    "convert": lambda model, *x, **named: [
        name for name, _ in nl.convert(model, "skipinit", *x, **named).named_parameters()
    ],
    "plan": lambda model, *x, **named: nl.plan(model, "skipinit", *x, **named),
    "mixes_examples": lambda model, *x, **named: nl.mixes_examples(model, *x, **named).modules,
    "fold": lambda model, *x, **named: str(nl.fold(model.eval(), *x, **named)[1]),
    "remove_norms": lambda model, *x, **named: str(nl.remove_norms(with_group_norm(model), *x, **named).plan),
    "param_groups": lambda model, *x, **named: str(nl.param_groups(model, *x, lr=0.1, weight_decay=1e-4, **named)),
    "inspect_network": partial(inspect_network, schemes=["skipinit", "lsuv"]),
}


@pytest.mark.parametrize("name", TAKERS)
def test_arguments_come_one_by_one_or_as_one_value(name: str) -> None:
    taker = TAKERS[name]
    torch.manual_seed(0)
    model, x, gain = network(), torch.randn(4, 3, 5, 5), torch.ones(4, 1, 1)

    def found(*inputs: Any, **named: Any) -> Any:
        torch.manual_seed(0)
        return taker(model, *inputs, **named)

    expected = found(x, gain)
    assert expected
    assert found(example_inputs=(x, gain)) == expected
    assert found(example_inputs={"x": x, "gain": gain}) == expected
    if name != "param_groups":
        assert found(x, gain=gain) == expected
    with pytest.raises(ValueError, match="separate arguments or as example_inputs=…, got both"):
        found(x, gain, example_inputs=(x, gain))
    for inputs, words in (
        ((4, 3, 5, 5), "got numbers: 4, 3, 5, 5"),
        (x.tolist(), r"Pass torch\.tensor\(numbers\)"),
        (x.numpy(), r"Pass torch\.from_numpy\(array\)"),
    ):
        with pytest.raises(InputsError, match=words):
            found(example_inputs=inputs)


def test_the_error_of_a_layer_is_told_with_the_shapes() -> None:
    mapped = nl.residual_map(nn.Conv2d(3, 4, 3), torch.randn(4, 3, 5, 5))
    with pytest.raises(InputsError, match=r"Conv2d .* \[4, 2, 5, 5\], RuntimeError: .*channels") as caught:
        nl.probe(nn.Conv2d(3, 4, 3), (torch.randn(4, 2, 5, 5), torch.ones(4)), residual_map=mapped)
    assert isinstance(caught.value.__cause__, RuntimeError)
