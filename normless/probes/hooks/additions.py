"""Residual sums that are operators in forward code, met as the code runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from normless.residual import ResidualBlock, ResidualMap, Site

_ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_IN_PLACE = frozenset({"add_", "__iadd__"})

OnSum = Callable[[ResidualBlock, Tensor, tuple[Tensor, ...], Tensor], None]
OnMissed = Callable[[ResidualBlock, str], None]


@dataclass
class _Frame:
    """A running call of a module: which one, and how many additions its own code has made."""

    module: nn.Module
    additions: int = 0


@dataclass
class _Part:
    """The summands of a block met so far."""

    skip: Tensor | None = None
    branches: list[Tensor] = field(default_factory=list)


class Additions(TorchFunctionMode):
    """Finds the additions at the sites of a map among all that forward code computes, and tells their operands.

    Additions are counted as `Site` does: those of two activations, in a module's own code. Where code makes
    another number of them than the dataflow has, the blocks there are reported as missed.
    """

    def __init__(self, model: nn.Module, found: ResidualMap, on_sum: OnSum, on_missed: OnMissed) -> None:
        super().__init__()
        self.on_sum = on_sum
        self.on_missed = on_missed
        # A module that runs several times meets the same site for one block after the other.
        self.blocks: dict[tuple[nn.Module, int], list[tuple[ResidualBlock, Site]]] = defaultdict(list)
        self.totals: dict[nn.Module, int] = {}
        for block in found.walk():
            for site in block.sites:
                module = model.get_submodule(site.module)
                self.blocks[module, site.index].append((block, site))
                self.totals[module] = site.total
        self.reset()

    def reset(self) -> None:
        """Start a new pass."""
        self.frames: list[_Frame] = []
        self.met: Counter[tuple[nn.Module, int]] = Counter()
        self.parts: dict[str, _Part] = defaultdict(_Part)

    def enter(self, module: nn.Module) -> None:
        """The forward code of a module starts."""
        self.frames.append(_Frame(module))

    def leave(self) -> None:
        """It has ended."""
        if not self.frames:
            return
        frame = self.frames.pop()
        total = self.totals.get(frame.module)
        if total is not None and total != frame.additions:
            reason = f"its forward code made {frame.additions} additions where its dataflow has {total}"
            for (module, _), blocks in self.blocks.items():
                if module == frame.module:
                    for block, _ in blocks:
                        self.on_missed(block, reason)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _ADDITIONS or not self.frames or not _adds_activations(args):
            return func(*args, **(kwargs or {}))
        frame = self.frames[-1]
        key = (frame.module, frame.additions)
        frame.additions += 1
        blocks = self.blocks.get(key, [])
        number = self.met[key]
        self.met[key] += 1
        if number >= len(blocks):
            return func(*args, **(kwargs or {}))
        operands = [operand.detach() for operand in args[:2]]
        if name in _IN_PLACE:
            operands[0] = operands[0].clone()
        total = func(*args, **(kwargs or {}))
        self._tell(*blocks[number], operands, total)
        return total

    def _tell(self, block: ResidualBlock, site: Site, operands: list[Tensor], total: Tensor) -> None:
        """Collect the summands of a block; with its last addition they are told."""
        part = self.parts[block.name]
        if part.skip is None:
            part.skip = operands[1 - site.branch]
        part.branches.append(operands[site.branch])
        if len(part.branches) == len(block.sites):
            del self.parts[block.name]
            self.on_sum(block, part.skip, tuple(part.branches), total)


@contextmanager
def met_additions(model: nn.Module, found: ResidualMap, on_sum: OnSum, on_missed: OnMissed) -> Iterator[None]:
    """Tell the residual sums that are operators while the body runs the network; no cost where there are none."""
    if not any(block.sites for block in found.walk()):
        yield
        return
    mode = Additions(model, found, on_sum, on_missed)
    handles: list[RemovableHandle] = []
    try:
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(_entering(mode, module is model), prepend=True))
            handles.append(module.register_forward_hook(_leaving(mode), always_call=True))
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(mode: Additions, starts_pass: bool) -> Callable[..., None]:
    def enter(module: nn.Module, _: Any) -> None:
        if starts_pass:
            mode.reset()
        mode.enter(module)

    return enter


def _leaving(mode: Additions) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        mode.leave()

    return leave


def _adds_activations(args: tuple[Any, ...]) -> bool:
    """Whether these are two different tensors, neither a parameter: biases and embeddings are no summands."""
    operands = args[:2]
    tensors = all(isinstance(operand, Tensor) and not isinstance(operand, nn.Parameter) for operand in operands)
    return len(operands) == 2 and tensors and operands[0] is not operands[1]
