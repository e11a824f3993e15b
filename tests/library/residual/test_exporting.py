"""What tracing leaves alone, which inputs it takes, and what it says where it cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matrix.case import changed, state_of
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from normless import InputsError, UnresolvedStructureError, residual_map
from normless.residual.reader import modules_around

WIDTH = 6


def remembering(m: Any, x: Tensor) -> Tensor:
    """Keep an attribute, draw random numbers, count in a buffer."""
    m.count += 1
    m.cache = m.f(x)
    return x + F.dropout(m.norm(m.cache), 0.5, m.training) + 0 * torch.randn_like(x)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_weights_buffers_attributes_mode_and_random_state_stay(training: bool) -> None:
    block = Written(remembering, **linear_layers("f", WIDTH), norm=nn.BatchNorm1d(WIDTH))
    block.register_buffer("count", torch.zeros(()))
    block.cache = None
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), block).train(training)
    model[0].eval()
    before, attributes = state_of(model), {name: dict(vars(module)) for name, module in model.named_modules()}
    residual_map(model, torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0)))
    assert changed(before, state_of(model)) == []
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes


@dataclass
class Answer:
    logits: Tensor
    cache: SimpleNamespace


def test_inputs_by_name_and_outputs_of_any_type() -> None:
    def answer(m: Written, left: Tensor, right: Tensor | None = None, *, scale: float = 1.0) -> Answer:
        left = torch.tanh(left)
        total = left + scale * m.f(left)
        return Answer(total if right is None else total * right, SimpleNamespace(keys=left))

    x, model = torch.randn(2, WIDTH), Written(answer, **linear_layers("f", WIDTH))
    by_name = residual_map(model, right=x, left=x, scale=0.5)
    assert by_name == residual_map(model, x, x, scale=0.5)
    assert by_name.blocks[0].branch == ("f",)


@pytest.mark.parametrize(
    ("layer", "shape", "said"),
    [
        (nn.Conv2d(3, 4, 3), (1, 5, 8, 8), r"1, a Conv2d, .* 3 channels.* 5\."),
        (nn.Linear(3, 4), (2, 7, 5), r"1, a Linear, .* 3 features.* 5\."),
    ],
)
def test_inputs_that_do_not_fit_say_what_the_layer_takes(layer: nn.Module, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputsError, match=said) as caught:
        residual_map(nn.Sequential(nn.ReLU(), layer), torch.zeros(shape))
    assert caught.value.takes == 3


def into_a_view(m: Written, x: Tensor) -> Tensor:
    x = torch.tanh(m.g(x))
    x[:, :3] += m.f(x)[:, :3]
    return 2 * x


def conditional(m: Written, x: Tensor) -> Any:
    x = torch.tanh(x)
    return torch.cond(x.sum() > 0, lambda x: x + m.f(x), lambda x: x + m.g(x), (x,))


UNRESOLVED = {into_a_view: "writes into a part of a tensor", conditional: "cond runs a graph of its own"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("forward", UNRESOLVED)
def test_what_cannot_be_understood_is_named_with_its_module_and_strict_raises(forward: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Written(forward, **linear_layers("f g", WIDTH)))
    (found,) = residual_map(model, torch.randn(2, WIDTH)).unresolved
    assert found.path == "1"
    assert UNRESOLVED[forward] in found.reason
    with pytest.raises(UnresolvedStructureError, match="cannot be understood: 1: "):
        residual_map(model, torch.randn(2, WIDTH), strict=True)


def test_a_block_that_is_another_in_the_other_mode_is_unresolved() -> None:
    """It adds another branch in training than in evaluation, after one that both have."""

    def other_sum(m: Written, x: Tensor) -> Tensor:
        y = m.f(x).tanh()
        return x + (m.g(y) if m.training else m.h(y))

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Written(other_sum, **linear_layers("f g h", WIDTH)))
    (item,) = residual_map(model, torch.randn(3, WIDTH)).unresolved
    assert item.path == "1"
    assert "in evaluation mode" in item.reason


def test_a_slice_of_a_sequential_is_none_of_the_networks_modules() -> None:
    names = ("", "L['self'].features.slice(1, 4, None).block", "L['self'].features.slice(1, 4, None).block.norm")
    stack = {f"key {index}": (name, None) for index, name in enumerate(names)}
    node: Any = SimpleNamespace(meta={"nn_module_stack": stack})
    assert modules_around(node) == ("", "features.block", "features.block.norm")


def padded(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Sequences padded to the longest of them; the lengths are numbers in a tensor; a layer for long ones."""
    x = m.stem(x)
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    x = x + m.f(m.norm(x)).relu() * mask[..., None]
    if hasattr(m, "g") and bool((lengths > 4).any()):
        x = x + m.g(x)
    return x


def of_lengths(names: str = "stem f") -> Any:
    return Written(padded, **linear_layers(names, WIDTH), norm=nn.LayerNorm(WIDTH))


@pytest.mark.parametrize("training", [False, True])
def test_lengths_in_tensors_are_those_of_the_example_inputs(training: bool) -> None:
    model, x, lengths = of_lengths().train(training), torch.randn(2, 5, WIDTH), torch.tensor([3, 5])
    before = deepcopy(model.state_dict())
    mapped = residual_map(model, x, lengths)
    assert [block.branch for block in mapped.blocks] == [("f",)]
    assert mapped.unresolved == ()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    net = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x, lengths)
    other = torch.tensor([4, 2])
    y = model.stem(x[:, :4])
    expected = y + model.f(y).relu() * (torch.arange(4)[None] < other[:, None])[..., None]
    torch.testing.assert_close(net(x[:, :4], other), expected)


def test_layers_that_other_values_would_run_are_unresolved() -> None:
    model, x = of_lengths("stem f g"), torch.randn(2, 5, WIDTH)
    short, long = torch.tensor([3, 4]), torch.tensor([3, 5])
    (skipped,) = residual_map(model, x[:, :4], short).unresolved
    assert skipped.path == "g"
    assert "which layers run depends on values in tensors" in skipped.reason
    with pytest.raises(UnresolvedStructureError, match="g: it does not run on these inputs"):
        nl.convert(model, "skipinit", x[:, :4], short)
    assert residual_map(model, x, long).unresolved == ()
    assert [block.branch for block in residual_map(model, x, long).blocks] == [("f",), ("g",)]


def images_padded(m: Any, *images: Tensor) -> Tensor:
    """Images of several sizes in one batch, written into zeros, as detection models do it."""
    x = images[0].new_zeros(len(images), 3, 8, 8)
    for place, image in zip(x, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]].copy_(image)
    x = m.stem(x)
    return x + m.f(m.norm(x))  # type: ignore[no-any-return]


def test_what_is_written_into_a_new_tensor_is_read_from_it() -> None:
    images = torch.randn(3, 8, 8), torch.randn(3, 6, 5)
    convolutions = {"stem": nn.Conv2d(3, 4, 3, padding=1), "f": nn.Conv2d(4, 4, 3, padding=1)}
    model: Any = Written(images_padded, **convolutions, norm=nn.BatchNorm2d(4))
    mapped = residual_map(model, *images, strict=True)
    assert [block.branch for block in mapped.blocks] == [("f",)]
    net = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", *images)
    y = model.stem(torch.stack([images[0], F.pad(images[1], (0, 3, 0, 2))]))
    torch.testing.assert_close(net(*images), y + model.f(y))


def hooking(m: Any, x: Tensor) -> Tensor:
    """Installs a hook in its first forward pass, as transformers does to collect hidden states."""
    m.seen = seen = list[Tensor]()
    if not m.is_hooked:
        m.f.register_forward_hook(lambda module, inputs, output: m.seen.append(output))
        m.is_hooked = True
    return (x + m.f(x)) * len(seen)


def test_hooks_that_a_network_installs_itself_are_installed_once() -> None:
    model, x = Written(hooking, **linear_layers("f", WIDTH)), torch.randn(2, WIDTH)
    model.is_hooked = False
    assert residual_map(model, x).depth == 1
    torch.testing.assert_close(model(x), x + model.f(x))


def nodes(m: Any, x: Tensor, graph: Tensor) -> Tensor:
    """Nodes of several graphs, padded to the largest graph for a layer and gathered again by a mask."""
    x, sizes = m.stem(x), graph.bincount()
    place = torch.arange(len(graph)) - (sizes.cumsum(0) - sizes)[graph]
    padded, mask = torch.zeros(2, 4, WIDTH), torch.zeros(2, 4, dtype=torch.bool)
    padded[graph, place] = x
    mask[graph, place] = True
    y = m.f(m.norm(padded.relu()))
    return sum([x + y[mask], x + m.g(m.norm2(x))])  # type: ignore[no-any-return]


def test_masks_that_gather_activations_are_followed() -> None:
    norms = {"norm": nn.LayerNorm(WIDTH), "norm2": nn.LayerNorm(WIDTH)}
    model: Any = Written(nodes, **linear_layers("stem f g", WIDTH), **norms)
    x, graph = torch.randn(6, WIDTH), torch.tensor([0, 0, 0, 0, 1, 1])
    assert [block.branch for block in residual_map(model, x, graph).blocks] == [("f",), ("g",)]
    net = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x, graph)
    y = model.stem(x)
    torch.testing.assert_close(net(x, graph), 2 * y + model.f(y.relu()) + model.g(y))
