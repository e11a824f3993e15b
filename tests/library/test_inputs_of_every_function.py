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
from normless.cli.inspection import inspect_network
from normless.errors import InputsError


def gained(m: Written, x: Tensor, gain: Tensor) -> Tensor:
    h = m.stem(x)
    return m.head((h + gain * m.conv(torch.relu(m.norm(h)))).mean((2, 3)))


def network(forward: Callable[..., Tensor] = gained) -> nn.Module:
    """A residual network of two arguments that does not state its structure."""
    layers = {"stem": nn.Conv2d(3, 4, 3, padding=1), "conv": nn.Conv2d(4, 4, 3, padding=1), "head": nn.Linear(4, 2)}
    return Written(forward, **layers, norm=nn.BatchNorm2d(4))


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
    assert found(x, gain=gain) == expected
    with pytest.raises(ValueError, match="separate arguments or as example_inputs=…, got both"):
        found(x, gain, example_inputs=(x, gain))


def test_parameter_groups_take_them_as_one_value_too() -> None:
    model, x, gain = network(), torch.randn(4, 3, 5, 5), torch.ones(4, 1, 1)
    groups = nl.param_groups(model, x, gain, lr=0.1, weight_decay=1e-4)
    assert str(groups) == str(nl.param_groups(model, lr=0.1, weight_decay=1e-4, example_inputs=(x, gain)))


IMAGES, LABELS = torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("batch", "said", "cause"),
    [
        ((torch.randn(4, 2, 5, 5), LABELS), r"Written .* \[4, 2, 5, 5\], RuntimeError: .*channels", RuntimeError),
        (("text", LABELS), "Written does not take arguments str, ", Exception),
        ((IMAGES, torch.tensor([0, 1, 7, 0])), r"cross_entropy .* \[4, 2\], \[4\], IndexError", IndexError),
        ((IMAGES, LABELS[:3]), r"cross_entropy does not take arguments \[4, 2\], \[3\], ValueError", ValueError),
        ((IMAGES, None), "targets are needed", None),
    ],
)
def test_what_a_network_or_a_loss_does_not_take_is_a_sentence(
    batch: Any, said: str, cause: type[Exception] | None
) -> None:
    model = network(lambda m, x, gain=None: gained(m, x, torch.ones(4, 1, 1)))
    mapped = nl.residual_map(model, IMAGES)
    with pytest.raises(ValueError, match=said) as caught:
        nl.probe(model, batch, residual_map=mapped)
    assert cause is None or isinstance(caught.value.__cause__, cause)
    assert isinstance(caught.value, nl.errors.InputsError) == (cause is not None)


@pytest.mark.parametrize(
    "taker",
    [
        *(nl.residual_map, nl.freeze, nl.fold, nl.fuse_for_inference, nl.mixes_examples, nl.watch),
        lambda model, *_: nl.diagnose(model, (IMAGES, LABELS)),
    ],
)
def test_what_is_no_network_is_refused(taker: Callable[..., Any]) -> None:
    inputs = () if taker in (nl.watch, nl.freeze) else (IMAGES,)
    for given in (nn.Linear, None, torch.relu):
        with pytest.raises(TypeError, match=r"Expected a network, a torch\.nn\.Module, got"):
            taker(given, *inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((4, 3, 5, 5), r"got numbers: 4, 3, 5, 5\. Pass .* torch\.randn\(shape\) if the numbers are a shape\."),
        (IMAGES.tolist(), r"got numbers: .*, …\. Pass torch\.tensor\(numbers\)"),
        (IMAGES.numpy(), r"got a NumPy array of shape \(4, 3, 5, 5\)\. Pass torch\.from_numpy\(array\)\."),
    ],
)
@pytest.mark.parametrize("name", ["residual_map", "plan", "fold"])
def test_a_shape_a_list_or_an_array_is_refused(name: str, inputs: Any, message: str) -> None:
    with pytest.raises(InputsError, match=message):
        TAKERS[name](network(), example_inputs=inputs)
