"""The simulated card itself: it refuses what CUDA refuses, takes what CUDA takes, and notes where the host waits."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from waits import CARD_TO_CPU, CPU_TO_CARD, noted_waits

REFUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": lambda there, here: there + here,
    "product": lambda there, here: there @ here.T,
    "index on the card": lambda there, here: here[torch.tensor([0], device="card")],
    "values put from the CPU": lambda there, here: there.index_put((torch.tensor([0]),), here[0]),
    "targets": lambda there, here: F.cross_entropy(there, torch.zeros(2, dtype=torch.long)),
    "list of tensors": lambda there, here: torch._foreach_add([there], [here]),
    "generator": lambda there, here: there.normal_(generator=torch.Generator()),
    "array": lambda there, here: there.numpy(),
}
TAKEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scalar tensor": lambda there, here: there * here.sum(),
    "copy": lambda there, here: there.clone().copy_(here),
    "indices": lambda there, here: there[torch.tensor([1, 0])],
    "generator": lambda there, here: there.clone().normal_(generator=torch.Generator("card").manual_seed(0)),
    "factory": lambda there, here: torch.arange(4.0, device=there.device).view(2, 2) + there,
}


@pytest.fixture
def pair(card: torch.device) -> tuple[Tensor, Tensor]:
    here = torch.randn(2, 2)
    return here.to(card), here


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses(pair: tuple[Tensor, Tensor], name: str) -> None:
    with pytest.raises(RuntimeError, match=r"same device|device type for generator|numpy"):
        REFUSED[name](*pair)


@pytest.mark.parametrize("name", TAKEN)
def test_what_cuda_takes(pair: tuple[Tensor, Tensor], name: str) -> None:
    assert TAKEN[name](*pair).device == pair[0].device


def test_where_the_host_waits(card: torch.device) -> None:
    here = torch.randn(3)
    there = here.to(card)
    for direction, wait in (
        (CARD_TO_CPU, lambda: there.sum().item()),
        (CARD_TO_CPU, there.nonzero),
        (CARD_TO_CPU, lambda: there[there > 0]),
        (CPU_TO_CARD, lambda: here.to(card)),
        (CPU_TO_CARD, lambda: torch.tensor(1.0, device=card)),
    ):
        with noted_waits() as notes:
            wait()
        assert [(note.direction, Path(note.place.rpartition(":")[0]).name) for note in notes] == [
            (direction, Path(__file__).name)
        ]
    with noted_waits() as notes:
        here.to(card, non_blocking=True)
        torch.full((), 2.0, device=card)
        (there * 2 + there.sum()).softmax(0)
    assert notes == []


def test_a_training_gives_what_it_gives_on_the_cpu(card: torch.device, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    twin = deepcopy(model).to(card)
    images, labels = torch.randn(5, 1, 8, 8), torch.arange(5)
    for net, device in ((model, torch.device("cpu")), (twin, card)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(net(images.to(device)), labels.to(device)).backward()
            optimizer.step()
    torch.save(twin.state_dict(), tmp_path / "weights.pt")
    stored = torch.load(tmp_path / "weights.pt", weights_only=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, stored[name])


def test_random_numbers_are_the_card_s_own(card: torch.device) -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = torch.rand(2, device=card)
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(2, device=card), first)
    assert not torch.equal(first.cpu(), expected)


def test_autocast(card: torch.device) -> None:
    layer, x = nn.Linear(2, 2).to(card), torch.randn(2, 2, device=card)
    with torch.autocast("card", torch.bfloat16):
        y = layer(x)
        assert (y.dtype, y.softmax(1).dtype) == (torch.bfloat16, torch.float32)
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
