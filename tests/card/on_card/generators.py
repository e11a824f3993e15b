"""Random numbers on the simulated card, whose state is apart from the CPU's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

# What tells generators of the card from others: operations receive no object of Python's, but the same seed.
_SEEDS_ON_CARD: set[int] = set()


class PlacedGenerator(torch.Generator):
    """A generator as torch's own, that may be on the card: its state is on the CPU and its seed marked."""

    on_card: bool

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make a generator of a device."""
        on_card = torch.device(device).type == "card"
        generator = super().__new__(cls, "cpu" if on_card else device)
        generator.on_card = on_card
        return generator.manual_seed(0) if on_card else generator

    def manual_seed(self, seed: int) -> PlacedGenerator:
        """See `torch.Generator.manual_seed`."""
        if self.on_card:
            seed = (seed * 2**20 + 987_654) % 2**63
            _SEEDS_ON_CARD.add(seed)
        super().manual_seed(seed)
        return self


class DefaultGenerator:
    """The state from which operations on the card draw that are given no generator."""

    def __init__(self) -> None:
        self.state = torch.Generator().manual_seed(0).get_state()

    def seed(self, seed: int) -> None:
        """Start anew from a seed; the numbers differ from those of the CPU with the same one."""
        self.state = torch.Generator().manual_seed((seed * 2 + 1) % 2**63).get_state()

    def draw(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation; its generator, if it is given one, must be on the card."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch._C.Generator)]
        if any(generator.initial_seed() not in _SEEDS_ON_CARD for generator in given):
            raise RuntimeError("Expected a 'card' device type for generator but found 'cpu'")
        if given:
            return operation(*args, **kwargs)
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            return operation(*args, **kwargs)
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(before)


DEFAULT = DefaultGenerator()


class CardModule:
    """`torch.card`, as `torch.cuda` is for CUDA."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: Any = None) -> None:
        """Wait for the card, which never lags behind."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        DEFAULT.seed(seed)

    manual_seed = manual_seed_all

    def get_rng_state(self, device: Any = None) -> Tensor:
        return DEFAULT.state.clone()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        DEFAULT.state = state.clone()
