"""A converted network is an ordinary module: in other processes, with checkpoints of activations, in DDP.

Copies, files, types, the compiler and exporters are tried by the matrix; goldens list classes and keys.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from gallery import ROWS
from matrix.case import Case, Subject
from matrix.scheme_facts import SCHEMES
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torchvision.models.resnet import BasicBlock

SURVIVORS = [("cifar 8", "fixup"), ("ViT", "skipinit")]
survivors = pytest.mark.parametrize(("network", "converted_by"), SURVIVORS)


@cache
def subject(network: str) -> Subject:
    return Subject(ROWS[network])


def survivor(network: str, converted_by: str) -> nn.Module:
    """The converted network in training mode, with noise on every parameter so that no branch is zero."""
    return Case(subject(network), SCHEMES[converted_by]).opened()


def images(network: str) -> Tensor:
    (x,) = subject(network).inputs
    return x


def loss_and_gradients(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The loss on fixed targets, as `loss`, and the gradient of every parameter of a network that has none yet."""
    loss = F.cross_entropy(net(x), torch.arange(len(x)) % 10)
    loss.backward()
    found = {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}
    assert found
    return found | {"loss": loss.detach()}


def test_pickle_in_a_process_that_converted_nothing(tmp_path: Path) -> None:
    net, x = survivor("ResNet-18", "batch_norm_sqrt2").eval(), images("ResNet-18")
    assert type(net.get_submodule("layer1.0")) is not BasicBlock
    torch.save({"net": net, "x": x, "expected": net(x)}, tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "saved = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.testing.assert_close(saved['net'](saved['x']), saved['expected'])\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path / "net.pt")], check=True)


@survivors
def test_gradient_checkpointing(network: str, converted_by: str) -> None:
    net, x = survivor(network, converted_by), images(network)
    expected = loss_and_gradients(deepcopy(net), x)
    runs = []
    paths = {block.name.partition("#")[0]: None for block in subject(network).found.blocks}
    for path in paths:
        block = net.get_submodule(path)
        block.register_forward_pre_hook(lambda module, _: runs.append(module))
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        weight = next(module for module in block.modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
        weight.register_forward_pre_hook(lambda module, _: runs.append(module))
    found = loss_and_gradients(net, x)
    # The block is called once, its layers once more for the gradient.
    assert len(runs) == 3 * len(paths)
    torch.testing.assert_close(found, expected)


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
    found = loss_and_gradients(DistributedDataParallel(net), x)
    torch.testing.assert_close({name.removeprefix("module."): one for name, one in found.items()}, expected)
