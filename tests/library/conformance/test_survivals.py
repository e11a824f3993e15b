"""A converted network is an ordinary module: what is done to modules leaves the function it computes as it was."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import onnxruntime
import pytest
import torch
from survivors import SLOW, SUBJECTS, SURVIVORS, images, original, survivor
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torchvision.models.resnet import BasicBlock

import normless as nl

NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.LayerNorm)


survivors = pytest.mark.parametrize(
    ("network", "converted_by"),
    [pytest.param(*pair, marks=[pytest.mark.slow] if pair in SLOW else [], id="-".join(pair)) for pair in SURVIVORS],
)


def loss_and_gradients(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The loss on fixed targets, as `loss`, and the gradient of every parameter of a network that has none yet."""
    loss = F.cross_entropy(net(x), torch.arange(len(x)) % 10)
    loss.backward()
    found = {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}
    assert found
    return found | {"loss": loss.detach()}


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@survivors
def test_class_and_weight_keys(network: str, converted_by: str) -> None:
    model, net = original(network), survivor(network, converted_by)
    norms = [path for path, module in model.named_modules() if isinstance(module, NORM_TYPES)]
    for path, module in model.named_modules():
        if path not in norms and any(True for _ in module.parameters()):
            assert isinstance(net.get_submodule(path), type(module)), path
    stay = converted_by == "batch_norm_sqrt2"
    old, new = model.state_dict(), net.state_dict()
    kept = [name for name in old if stay or name.rpartition(".")[0] not in norms]
    assert kept
    assert {name: value.shape for name, value in new.items() if name in kept} == {
        name: old[name].shape for name in kept
    }
    if stay:
        assert list(new) == list(old)


@survivors
def test_copied_pickled_and_saved(network: str, converted_by: str, tmp_path: Path) -> None:
    """`deepcopy`, `pickle`, a state dict, and `nl.save`: another network of the same function."""
    net, other = survivor(network, converted_by).eval(), survivor(network, converted_by).eval()
    x = images(network)
    expected = net(x)
    nl.save(net, tmp_path, example_inputs=x)
    assert not torch.allclose(other(x), expected)
    assert not any(other.load_state_dict(net.state_dict()))
    for copied in (deepcopy(net), pickle.loads(pickle.dumps(net)), other, nl.load(tmp_path, original(network))):
        assert type(copied) is type(net)
        assert torch.equal(copied(x), expected)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(2)
        assert torch.equal(net(x), expected)
        assert not torch.allclose(copied(x), expected)


def test_pickle_in_a_process_that_converted_nothing(tmp_path: Path) -> None:
    net, x = survivor("resnet18", "batch_norm_sqrt2").eval(), images("resnet18")
    assert type(net.get_submodule("layer1.0")) is not BasicBlock
    torch.save({"net": net, "x": x, "expected": net(x)}, tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "saved = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.testing.assert_close(saved['net'](saved['x']), saved['expected'])\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path / "net.pt")], check=True)


@survivors
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compile(network: str, converted_by: str) -> None:
    net, x = survivor(network, converted_by), images(network)
    expected = loss_and_gradients(deepcopy(net), x)
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(loss_and_gradients(compiled, x)["loss"], expected["loss"])
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5, msg=name)


@survivors
@pytest.mark.filterwarnings("default")  # the exporter's own
def test_export(network: str, converted_by: str) -> None:
    net = survivor(network, converted_by).eval()
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(net, (images(network),), dynamic_shapes=({0: batch},)).module()
    other = images(network, 7)
    torch.testing.assert_close(exported(other), net(other), rtol=1e-4, atol=1e-5)


@survivors
@pytest.mark.filterwarnings("default")  # the exporter's own
def test_onnx(network: str, converted_by: str, tmp_path: Path) -> None:
    net, x = survivor(network, converted_by).eval(), images(network)
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), path, input_names=["images"], dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    other = images(network)
    (found,) = session.run(None, {"images": other.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), net(other), rtol=1e-3, atol=1e-4)


@survivors
def test_autocast(network: str, converted_by: str) -> None:
    net, x = survivor(network, converted_by), images(network)
    exact = loss_and_gradients(deepcopy(net), x)["loss"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = loss_and_gradients(net, x)
    assert rounded.keys() - {"loss"} == dict(net.named_parameters()).keys()
    assert all(value.isfinite().all() for value in rounded.values())
    assert relative_error(rounded["loss"], exact) < 0.02
    net.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = net(x)
    assert found.dtype == torch.bfloat16
    assert relative_error(found, net(x)) < 0.03


@survivors
def test_dtypes_and_channels_last(network: str, converted_by: str) -> None:
    net, x = survivor(network, converted_by).eval(), images(network)
    expected = net(x)
    for dtype, tolerance in ((torch.bfloat16, 0.03), (torch.float64, 1e-5)):
        made = deepcopy(net).to(dtype)
        found = made(x.to(dtype))
        assert found.dtype == dtype
        assert relative_error(found, expected) < tolerance
        assert all(value.dtype == dtype for value in made.state_dict().values() if value.is_floating_point())
    made.to(memory_format=torch.channels_last)
    other = made(x.double().to(memory_format=torch.channels_last))
    torch.testing.assert_close(other, found, rtol=1e-10, atol=1e-10)


@survivors
def test_gradient_checkpointing(network: str, converted_by: str) -> None:
    net, x = survivor(network, converted_by), images(network)
    expected = loss_and_gradients(deepcopy(net), x)
    runs = []
    for path in SUBJECTS[network].blocks:
        block = net.get_submodule(path)
        block.register_forward_pre_hook(lambda module, _: runs.append(module))
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        weight = next(module for module in block.modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
        weight.register_forward_pre_hook(lambda module, _: runs.append(module))
    found = loss_and_gradients(net, x)
    # The block is called once, its layers once more for the gradient.
    assert len(runs) == 3 * len(SUBJECTS[network].blocks)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], msg=name)


@pytest.mark.parametrize("converted_by", ["skipinit", "batch_norm_sqrt2"])
def test_gradient_checkpointing_by_timm(converted_by: str) -> None:
    net, x = survivor("test_vit", converted_by), images("test_vit")
    expected = loss_and_gradients(deepcopy(net), x)
    net.set_grad_checkpointing()
    found = loss_and_gradients(net, x)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], msg=name)


@pytest.fixture
def one_process() -> Iterator[None]:
    """A process group of this process alone, over the loopback interface."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@survivors
@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("default")  # torch's own
def test_distributed(network: str, converted_by: str) -> None:
    net, x = survivor(network, converted_by), images(network)
    expected = loss_and_gradients(deepcopy(net), x)
    parallel = DistributedDataParallel(net)
    found = loss_and_gradients(parallel, x)
    assert {name.removeprefix("module.") for name in found} == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name.removeprefix("module.")], msg=name)
