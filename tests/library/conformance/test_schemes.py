"""What schemes promise beyond the matrix: counts, templates on foreign networks, other processes, caches, DDP.

Copies, files, types, the compiler and exporters are tried by the matrix; goldens list classes and keys.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import ROWS
from matrix.case import Case, Subject
from matrix.scheme_facts import SCHEMES
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import normless as nl
from normless.models import resnet_cifar


@pytest.mark.parametrize(("depth", "expected"), [(20, (9, 38, 268_393)), (110, (54, 218, 1_720_138))])
def test_published_counts_of_fixup(depth: int, expected: tuple[int, int, int]) -> None:
    parameters = list(nl.convert(resnet_cifar(depth), "fixup").named_parameters())
    multipliers = sum(name.endswith("multiplier") for name, _ in parameters)
    biases = sum(name.endswith(("input_bias", "output_bias")) for name, _ in parameters)
    assert (multipliers, biases, sum(p.numel() for _, p in parameters)) == expected


@pytest.mark.parametrize("network", ["small timm ViT", "torch pre-norm encoder", "hf GPT-2", "hf BERT"])
def test_fixup_leaves_queries_and_keys_and_tied_tables_alone(network: str) -> None:
    model, (inputs, kwargs) = ROWS[network].network(), ROWS[network].example()
    net = nl.convert(model, "fixup", *inputs, **kwargs)
    factor = nl.residual_map(model, *inputs, **kwargs).depth ** -0.5
    after, checked = dict(net.named_parameters()), 0
    for name, one in model.named_parameters():
        if re.search(r"(qkv\.weight|in_proj_weight|c_attn\.weight)$", name):
            axis = 1 if "c_attn" in name else 0
            for index, (old, new) in enumerate(zip(one.chunk(3, axis), after[name].chunk(3, axis), strict=True)):
                torch.testing.assert_close(new, old * factor if index == 2 else old)
            checked += 1
        if name.endswith(("query.weight", "key.weight", "wte.weight")):
            assert torch.equal(after[name], one)
            checked += 1
    assert checked >= 2


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
    layer, x = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), torch.randn(2, 5, 8)
    net: Any = nl.convert(nn.TransformerEncoder(layer, 2), "batch_norm_sqrt2", x).eval()
    assert type(net.layers[0]) is not nn.TransformerEncoderLayer
    torch.save({"net": net, "x": x, "expected": net(x)}, tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "saved = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.testing.assert_close(saved['net'](saved['x']), saved['expected'])\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path / "net.pt")], check=True)


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
