"""Residual sums that are operators in forward code, intercepted as the code runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normless.residual import ResidualBlock, ResidualMap, Site

_ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_IN_PLACE = frozenset({"add_", "__iadd__"})

OnSum = Callable[[ResidualBlock, Tensor, tuple[Tensor, ...], Tensor], None]
OnMissed = Callable[[ResidualBlock, str], None]


@dataclass
class _Frame:
    """A running module call, and the number of additions its own code has executed."""

    module: nn.Module
    additions: int = 0


class Additions(TorchFunctionMode):
    """Intercepts the additions at the sites of a residual map, counted as in `Site`.

    Where a module makes another number of them than its dataflow has, its blocks are reported as missed.
    """

    def __init__(self, model: nn.Module, residual_map: ResidualMap, on_sum: OnSum, on_missed: OnMissed) -> None:
        super().__init__()
        self.model = model
        self.on_sum = on_sum
        self.on_missed = on_missed
        # A module that runs several times reaches one site for several blocks, in their order.
        self.blocks: dict[tuple[nn.Module, int], list[tuple[ResidualBlock, Site]]] = defaultdict(list)
        self.totals: dict[nn.Module, int] = {}
        for block in residual_map.walk():
            for site in block.sites:
                module = model.get_submodule(site.module)
                self.blocks[module, site.index].append((block, site))
                self.totals[module] = site.total
        self.reset()

    def reset(self) -> None:
        """Start a new pass."""
        self.frames: list[_Frame] = []
        self.visits: Counter[tuple[nn.Module, int]] = Counter()
        # By block: its skip path, and the ends of the branches that were added so far.
        self.summands: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def enter(self, module: nn.Module, _: Any) -> None:
        """Forward pre-hook of every module."""
        if module is self.model:
            self.reset()
        self.frames.append(_Frame(module))

    def leave(self, *_: Any) -> None:
        """Forward hook of every module."""
        if not self.frames:
            return
        frame = self.frames.pop()
        total = self.totals.get(frame.module)
        if total is None or total == frame.additions:
            return
        reason = f"its forward code made {frame.additions} additions where its dataflow has {total}"
        for (module, _index), blocks in self.blocks.items():
            if module == frame.module:
                for block, _site in blocks:
                    self.on_missed(block, reason)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _ADDITIONS or not self.frames or not _adds_activations(args):
            return func(*args, **(kwargs or {}))
        frame = self.frames[-1]
        site = (frame.module, frame.additions)
        frame.additions += 1
        blocks, visit = self.blocks.get(site, []), self.visits[site]
        self.visits[site] += 1
        if visit >= len(blocks):
            return func(*args, **(kwargs or {}))
        operands = [operand.detach() for operand in args[:2]]
        if name in _IN_PLACE:
            operands[0] = operands[0].clone()
        total = func(*args, **(kwargs or {}))
        self._collect(*blocks[visit], operands, total)
        return total

    def _collect(self, block: ResidualBlock, site: Site, operands: list[Tensor], total: Tensor) -> None:
        """Add the summands of one addition of a block; its last addition completes the sum."""
        skip, branches = self.summands.setdefault(block.name, (operands[1 - site.branch], []))
        branches.append(operands[site.branch])
        if len(branches) == len(block.sites):
            del self.summands[block.name]
            self.on_sum(block, skip, tuple(branches), total)


@contextmanager
def intercept_additions(
    model: nn.Module, residual_map: ResidualMap, on_sum: OnSum, on_missed: OnMissed
) -> Iterator[None]:
    """Report the residual sums that are operators while the body runs the network; free where there are none."""
    if not any(block.sites for block in residual_map.walk()):
        yield
        return
    mode = Additions(model, residual_map, on_sum, on_missed)
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(mode.enter, prepend=True).remove)
            stack.callback(module.register_forward_hook(mode.leave, always_call=True).remove)
        stack.enter_context(mode)
        yield


def _adds_activations(args: tuple[Any, ...]) -> bool:
    """Whether the operands are two different tensors and no parameters, so neither biases nor embeddings."""
    operands = args[:2]
    tensors = all(isinstance(operand, Tensor) and not isinstance(operand, nn.Parameter) for operand in operands)
    return len(operands) == 2 and tensors and operands[0] is not operands[1]
