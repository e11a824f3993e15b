"""Networks that train in place: the values and gradients of those that do not, wherever they are allowed to."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from normless import convert, recompute_blocks
from normless.folding import train_in_place
from normless.models import resnet_cifar, wide_resnet
from normless.nn import ResidualSum, ShiftedActivation, kept_once
from normless.nn.in_place import InPlace

SCHEMES = ["none", "skipinit", "fixup", "sqrt2", "rezero", "batch_norm", "nf_resnet"]


@pytest.fixture(autouse=True)
def _at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_once, "SMALLEST", 0)


def images(size: int = 8) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 3, size, size, dtype=torch.float64)


def randomized(network: nn.Module) -> nn.Module:
    """In float64 and train mode, with random parameters."""
    torch.manual_seed(0)
    network = network.double().train()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    return network


def pair(scheme: str, network: Any = resnet_cifar, depth: int = 8) -> tuple[nn.Module, nn.Module]:
    """A converted network, and a copy of it that trains in place."""
    plain = randomized(convert(network(depth), scheme))
    return plain, train_in_place(deepcopy(plain), images())


def in_place(network: nn.Module) -> list[str]:
    """The names of the modules that work in place now."""
    return [name for name, module in network.named_modules() if isinstance(module, InPlace) and module.inplace]


def gradients(network: nn.Module, x: Tensor, create_graph: bool = False) -> list[Tensor]:
    loss = network(x).square().sum()
    return [loss, *torch.autograd.grad(loss, list(network.parameters()), create_graph=create_graph)]


def assert_same_gradients(plain: nn.Module, other: nn.Module, x: Tensor) -> None:
    """The same loss and gradients to 1e-10 of each one's size, from an input left as it is."""
    given = x.clone()
    for one, expected in zip(gradients(other, x), gradients(plain, x), strict=True):
        size = expected.abs().max().clamp_min(1e-300)
        torch.testing.assert_close(one / size, expected / size, rtol=0, atol=1e-10)
    assert torch.equal(x, given)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_resnets_train_in_place_throughout(scheme: str) -> None:
    plain, other = pair(scheme)
    assert not in_place(plain)
    assert len(in_place(other)) == 1 + 3 * 3
    assert_same_gradients(plain, other, images())
    assert other.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_first_activation_of_a_wide_resnets_block_keeps_its_input(scheme: str) -> None:
    plain, other = pair(scheme, lambda depth: wide_resnet(depth, 1), 10)
    assert {f"blocks.{index}.{name}" for index in range(3) for name in ("relu2", "sum")} <= set(in_place(other))
    # It reads a norm's output where there is one, else the block's input.
    assert ("blocks.0.relu1" in in_place(other)) is (scheme == "batch_norm")
    assert_same_gradients(plain, other, images())


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_a_network_of_another_package(scheme: str) -> None:
    plain = randomized(convert(torchvision.models.resnet18(num_classes=5), scheme, images(32).float()))
    other = train_in_place(deepcopy(plain), images(32))
    assert in_place(other)
    assert_same_gradients(plain, other, images(32))


def test_operands_are_overwritten() -> None:
    _, other = pair("skipinit")
    block: Any = other.blocks[1]
    h = block.conv1(torch.randn(2, 32 if block.conv1.in_channels == 32 else 16, 8, 8, dtype=torch.float64))
    assert block.relu1(h) is h
    assert block.sum(torch.ones_like(h), h) is h
    fixup: Any = pair("fixup")[1].blocks[0]
    h = fixup.conv1(torch.randn(2, 16, 8, 8, dtype=torch.float64)) + 0
    assert fixup.relu1(h).data_ptr() == h.data_ptr()
    block.sum.branch_factor, block.sum.skip_factor = 0.5, 2.0
    skip, branch = torch.randn_like(h), torch.randn_like(h)
    torch.testing.assert_close(block.sum(skip, branch.clone()), 0.5 * branch + 2 * skip)


class Written(nn.Module):
    """Forward code given as a function of the module and x; its modules have three channels in and out."""

    def __init__(self, code: Any) -> None:
        super().__init__()
        self.code = code
        self.conv, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.relu, self.sum, self.drop, self.shifted = nn.ReLU(), ResidualSum(), nn.Dropout(0.5), _shifted()

    def forward(self, x: Tensor) -> Any:
        return self.code(self, x)


def _shifted() -> ShiftedActivation:
    module = ShiftedActivation(nn.ReLU())
    module.add_part("output_bias", torch.zeros(1))
    return module


CODES: dict[str, tuple[Any, list[str]]] = {
    "chain": (lambda m, x: m.conv2(m.relu(m.conv(x))), ["relu"]),
    "sum": (lambda m, x: m.relu(m.sum(x, m.conv(x))), ["relu", "sum"]),
    "input": (lambda m, x: m.conv(m.relu(x)), []),
    "read twice": (lambda m, x: (lambda h: m.relu(h) + h)(m.conv(x)), []),
    "read only in training": (lambda m, x: (lambda h: m.relu(h) + (h if m.training else 0))(m.conv(x)), []),
    "the branch ends in a ReLU": (lambda m, x: m.sum(x, m.relu(m.conv(x))), ["relu"]),
    "the branch ends in a sigmoid": (lambda m, x: m.sum(x, torch.sigmoid(m.conv(x))), []),
    "a ReLU of a ReLU": (lambda m, x: m.relu(torch.relu(m.conv(x))), []),
    "biases": (lambda m, x: m.conv2(m.shifted(m.conv(x))), ["shifted"]),
    "dropout": (lambda m, x: m.relu(m.drop(m.conv(x))), ["relu"]),
}


@pytest.mark.parametrize("case", CODES)
def test_forward_code(case: str) -> None:
    code, expected = CODES[case]
    plain = randomized(Written(code))
    other = train_in_place(deepcopy(plain), images())
    assert in_place(other) == expected
    results = []
    for network in (plain, other):
        torch.manual_seed(5)
        y = network(images())
        results.append([y, *torch.autograd.grad(y.square().sum(), [network.conv.weight, network.conv.bias])])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_what_a_function_in_python_returned_is_kept() -> None:
    # Exported, the sum of a ReLU and a bias; run, a function that keeps its result.
    plain = randomized(Written(lambda m, x: m.sum(x, m.shifted(m.conv(x)))))
    other = train_in_place(deepcopy(plain), images())
    assert in_place(other) == ["sum", "shifted"]
    results = [
        torch.autograd.grad(one(images()).square().sum(), [one.conv.weight, one.shifted.output_bias])
        for one in (plain, other)
    ]
    for one, expected in zip(*results, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-10, atol=1e-10)


def test_evaluation_and_passes_without_gradients_keep_operands() -> None:
    plain, other = pair("fixup")
    assert in_place(other)
    with torch.no_grad():
        assert not in_place(other)
        torch.testing.assert_close(other(images()), plain(images()), rtol=1e-10, atol=1e-10)
    other.eval()
    assert not in_place(other)
    assert_same_gradients(plain.eval(), other, images())


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_hook_in_a_block_keeps_its_operands(kind: str) -> None:
    plain, other = pair("fixup")
    handle = getattr(other.blocks[1].conv1, f"register_{kind}_hook")(lambda *given: None)
    assert not any(name.startswith("blocks.1.") for name in in_place(other))
    assert_same_gradients(plain, other, images())
    handle.remove()
    assert len(in_place(other)) == 10
    everywhere = getattr(nn.modules.module, f"register_module_{kind}_hook")(lambda *given: None)
    assert not in_place(other)
    everywhere.remove()


def test_another_layer_in_the_place_of_the_one_that_is_read() -> None:
    plain, other = pair("skipinit")
    for network in (plain, other):
        network.blocks[0].conv1 = nn.Identity()
    # Its ReLU now reads what the skip path reads.
    assert_same_gradients(plain, other, images())


def test_it_can_be_switched_off() -> None:
    plain, other = pair("skipinit")
    for module in other.modules():
        if isinstance(module, InPlace):
            module.inplace = False
            with pytest.raises(ValueError, match="train_in_place"):
                module.inplace = True
    assert not in_place(other)
    assert_same_gradients(plain, other, images())


def test_second_derivatives() -> None:
    plain, other = pair("fixup")
    results = []
    for network in (plain, other):
        _loss, *first = gradients(network, images(), create_graph=True)
        size = sum(one.square().sum() for one in first)
        results.append(torch.autograd.grad(size / size.detach(), list(network.parameters())))
    for one, expected in zip(*results, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-10)


# torch 2.15 compiles its forward-mode rules with what it deprecates itself.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_transforms_modes_and_exports_see_operators_that_keep_their_operands() -> None:
    plain, other = pair("fixup")
    x, weights = images(), dict(plain.named_parameters())

    def loss(parameters: dict[str, Tensor], one: Tensor, network: nn.Module) -> Tensor:
        return torch.func.functional_call(network, parameters, (one[None],)).square().sum()

    for_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, None))
    expected = for_each(weights, x, plain)
    for name, one in for_each(dict(other.named_parameters()), x, other).items():
        torch.testing.assert_close(one, expected[name], rtol=1e-10, atol=1e-10)
    tangents = [torch.func.jvp(network, (x,), (x.cos(),))[1] for network in (plain, other)]
    torch.testing.assert_close(*tangents, rtol=1e-10, atol=1e-10)
    nodes = torch.export.export(other, (x,), strict=False).graph.nodes
    names = {node.target.__name__ for node in nodes if node.op == "call_function"}
    assert {"relu.default", "add.Tensor"} <= names
    assert not [name for name in names if name.partition(".")[0].endswith("_")]
    for mode in (TorchFunctionMode(), TorchDispatchMode()):
        with mode:
            assert not in_place(other)


def test_copies_and_files() -> None:
    plain, other = pair("skipinit")
    for copied in (deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert in_place(copied) == in_place(other)
        assert_same_gradients(plain, copied, images())
        copied.blocks[0].conv1.register_forward_hook(lambda *given: None)
        assert not any(name.startswith("blocks.0.") for name in in_place(copied))
    assert len(in_place(other)) == 10


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_recomputed_blocks(scheme: str) -> None:
    plain, other = pair(scheme)
    recompute_blocks(other, images())
    assert in_place(other)
    assert_same_gradients(plain, other, images())


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_autocast(scheme: str) -> None:
    plain, other = (one.float() for one in pair(scheme))
    results = []
    for network in (plain, other):
        with torch.autocast("cpu", torch.bfloat16):
            loss = network(images().float()).square().sum()
        results.append([loss, *torch.autograd.grad(loss, list(network.parameters()))])
    for one, expected in zip(*results, strict=True):
        assert torch.equal(one, expected)


def test_nothing_more_is_kept() -> None:
    kept: list[dict[int, int]] = []
    for network in pair("fixup"):
        storages: dict[int, int] = {}

        def pack(tensor: Tensor, storages: dict[int, int] = storages) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            y = network(images())
        kept.append(storages)
        del y
    assert sum(kept[1].values()) <= sum(kept[0].values())


def test_a_network_without_example_inputs() -> None:
    with pytest.raises(ValueError, match="pass a batch"):
        train_in_place(resnet_cifar(8))
    converted = convert(resnet_cifar(8), "skipinit", images().float())
    assert len(in_place(train_in_place(converted.train()))) == 10
