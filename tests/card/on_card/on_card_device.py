"""The simulated card itself: it refuses what CUDA refuses, takes what CUDA takes, and notes where the host waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
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


def test_random_numbers_are_the_card_s_own(card: torch.device) -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = torch.rand(2, device=card)
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(2, device=card), first)
    assert not torch.equal(first.cpu(), expected)
