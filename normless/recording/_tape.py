"""The operations of one forward pass, as torch runs them: what each reads, writes and belongs to.

The tape is a `TorchDispatchMode`. Below autograd it sees operations before they are decomposed: `linear`,
`layer_norm`, `dropout(input, p, training)`, also inside composite functions such as `F.multi_head_attention_forward`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from operator import getitem
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from normless._internal.overwriting import OverwrittenMemory, storage_of, updated, written
from normless.recording._calls import Call, Recorder

# These return sizes by the values of their second argument, and their tags do not say so.
_READS_LENGTHS = {"_pack_padded_sequence"}
# These read the shape and dtype of their argument, never its values.
SHAPE_ONLY = {
    "new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "zeros_like", "ones_like", "full_like",
    "rand_like", "randn_like", "randint_like", "sym_size", "sym_numel", "sym_stride", "_assert_tensor_metadata",
    "_assert_scalar", "_has_compatible_shallow_copy_type",
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Node:
    """One operation, or a tensor that is there before the pass; it holds no values.

    Attributes:
        kind: `call`, or `input`, `parameter`, `buffer` or `constant` for a tensor.
        name: the name of the operation, with an underscore if in place, or of the parameter or buffer.
        args: its arguments, with tensors as nodes.
        kwargs: its keyword arguments, likewise.
        target: the torch operation.
        shape: the shape of its result, None if that is not a tensor.
        floating: whether its result is of a floating-point or complex dtype.
        modules: the paths of the running modules, outermost first.
        runs: the numbers of the runs of these modules, unique in the pass.
        call: the call in forward code that makes it.
        active: whether its result depends on the inputs of the network.
        readers: the number of times that other nodes read it.
    """

    kind: str
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None
    shape: tuple[int, ...] | None = None
    floating: bool = True
    modules: tuple[str, ...] = ("",)
    runs: tuple[int, ...] = (0,)
    call: Call | None = None
    active: bool = False
    readers: int = 0

    def inputs(self) -> Iterator[Node]:
        """Iterate over the nodes among the arguments, each as often as it is given."""
        return _nodes((self.args, *self.kwargs.values()))

    def describe(self, value: Tensor) -> None:
        """Note the shape and kind of dtype of the result; a nested tensor has no sizes."""
        self.shape = None if value.is_nested else tuple(value.shape)
        self.floating = value.is_floating_point() or value.is_complex()


class Tape(TorchDispatchMode):
    """Record the operations of one pass, in order.

    A tensor is known by its identity while it lives, and by its storage: after a write, whoever reads another tensor
    in the same memory reads the write.

    Attributes:
        nodes: the operations and the tensors that they read.
        outputs: the nodes of the tensors that the network returns.
        returns_tensor: whether it returns a single tensor.
        follows_values: whether values that depend on the inputs decide what runs.
        written: the names of the parameters that forward code overwrites.
        only_reads: whether forward code reads a number now that does not decide anything yet.
    """

    supports_higher_order_operators = True

    def __init__(self, tensors: Mapping[str, tuple[str, Tensor]], recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.nodes: list[Node] = []
        self.outputs: list[Node] = []
        self.returns_tensor = False
        self.follows_values = False
        self.written: set[str] = set()
        self.only_reads = False
        self._around: tuple[tuple[str, ...], tuple[int, ...]] = ("",), (0,)
        self._latest: Any = None
        self._names = {id(tensor): (kind, name) for name, (kind, tensor) in tensors.items()}
        # By the id of a living tensor: its node, or how to make it; a reference and the storage.
        self._known: dict[int, Node | Callable[[], Node]] = {}
        self._alive: dict[int, tuple[Any, int]] = {}
        self._sharing: dict[int, dict[int, None]] = defaultdict(dict)
        # By storage, a tensor from before the pass.
        self._older: dict[int, Tensor] = {}
        self._overwritten = OverwrittenMemory()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, sizes_vary = _traits(func)
        node = self._append(name, self._plain(args), {key: self._plain(value) for key, value in kwargs.items()}, func)
        for tensor in updated(func, args, kwargs):
            self._save(tensor)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            node.describe(result)
            if not self._is_parameter(id(result)):
                self.know(result, node)
        elif isinstance(result, (list, tuple)):
            for place, part in enumerate(result):
                if isinstance(part, Tensor):
                    share = self._append("getitem", (node, place), {}, getitem)
                    share.describe(part)
                    self.know(part, share)
        # Values become a number, a truth value or a size, by which forward code may decide what runs.
        decides = not isinstance(result, (Tensor, list, tuple, type(None))) and not self.only_reads
        lengths = node.args[1] if name in _READS_LENGTHS else None
        sizes_vary |= isinstance(lengths, Node) and lengths.active
        self.follows_values |= node.active and (decides or sizes_vary)
        for tensor in written(func, args, kwargs):
            self._write(tensor, node)
        return result

    def node_of(self, tensor: Tensor) -> Node:
        """Return the node with the values of a tensor."""
        known = self._known.get(id(tensor))
        if known is None:
            return self._alias(tensor) or self.add_root(tensor, *self._names.get(id(tensor), ("constant", "")))
        if not isinstance(known, Node):
            known = self._known[id(tensor)] = known()
        return known

    def add_root(self, tensor: Tensor, kind: str, name: str = "") -> Node:
        """Add a tensor that the pass did not compute."""
        node = Node(kind, name, active=kind == "input")
        node.describe(tensor)
        self.nodes.append(node)
        self.know(tensor, node)
        self._older.setdefault(self._alive[id(tensor)][1], tensor)
        return node

    def know(self, tensor: Tensor, node: Node | Callable[[], Node]) -> None:
        """Let a tensor have the values of a node."""
        key = id(tensor)
        if key not in self._alive:
            storage = storage_of(tensor)
            self._alive[key] = ref(tensor, partial(self._forget, key)), storage
            self._sharing[storage][key] = None
        self._known[key] = node

    def differentiated(self, tensors: Iterable[Tensor], like: Tensor) -> Tensor:
        """Return a tensor like another that stands for a derivative of given tensors, which has no values."""
        made = torch.ones_like(like)
        node = self._append("grad", tuple(map(self.node_of, tensors)), {}, torch.autograd.grad)
        node.describe(made)
        self.know(made, node)
        return made

    def leaves(self) -> list[Tensor]:
        """Return the tensors, without parameters, of which `backward` computes gradients."""
        alive = [known() for known, _ in self._alive.values()]
        return [
            value
            for value in alive
            if value is not None and value.requires_grad and not self._is_parameter(id(value))
        ]

    def replace_data(self, tensor: Tensor, values: Tensor) -> None:
        """Let a tensor have the memory of another, as `tensor.data = values` does."""
        node = self.node_of(tensor if self._is_parameter(id(tensor)) else values)
        self._forget(id(tensor), None)
        tensor.data = values
        self.know(tensor, node)

    def end(self) -> None:
        """Restore the values from before the pass that operations have overwritten, and forget all tensors."""
        self._overwritten.restore()
        for table in (self._known, self._alive, self._sharing, self._older):
            table.clear()

    def _append(self, name: str, args: Any, kwargs: Any, target: Any) -> Node:
        runs = self.recorder.stack
        if runs and runs[-1] is not self._latest:
            self._latest = runs[-1]
            self._around = tuple(run.path for run in runs), tuple(run.order for run in runs)
        node = Node("call", name, args, kwargs, target, None, True, *self._around, self.recorder.call)
        for source in node.inputs():
            source.readers += 1
            node.active = node.active or source.active
        node.active = node.active and name not in SHAPE_ONLY
        self.nodes.append(node)
        return node

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._plain, value))
        return value if isinstance(value, (int, float, bool, str)) else None

    def _forget(self, key: int, _: Any) -> None:
        self._known.pop(key, None)
        storage = self._alive.pop(key, (None, 0))[1]
        sharing = self._sharing.get(storage)
        if sharing is not None:
            sharing.pop(key, None)
            if not sharing:
                del self._sharing[storage]

    def _save(self, tensor: Tensor) -> None:
        """Keep the values in memory from before the pass that an operation is about to overwrite."""
        storage = self._alive[id(tensor)][1]
        if storage in self._older and self._overwritten.save(tensor, storage):
            kind, name = self._names.get(id(self._older[storage]), ("", ""))
            self.written |= {name} if kind == "parameter" else set()

    def _write(self, tensor: Tensor, node: Node) -> None:
        """Let all tensors in the memory that a node wrote into have its values."""
        for key in list(self._sharing.get(self._alive[id(tensor)][1], ())):
            old = self._known[key]
            if self._is_parameter(key):
                continue
            # An empty tensor that forward code fills is what it is filled with.
            fills = isinstance(old, Node) and not old.active and node.active
            if key == id(tensor) or fills:
                self._known[key] = node
            elif old is not node:
                self._known[key] = partial(self._join, old, node)

    def _is_parameter(self, key: int) -> bool:
        """Whether this is the id of a parameter, which it stays whatever forward code writes into it."""
        return self._names.get(key, ("",))[0] == "parameter"

    def _alias(self, tensor: Tensor) -> Node | None:
        """Make the node of a tensor that no operation made, in the memory of another, such as one from NumPy."""
        sharing = self._sharing.get(storage_of(tensor)) if id(tensor) not in self._names else None
        if not sharing:
            return None
        node = self.node_of(self._alive[next(reversed(sharing))][0]())
        is_whole = node.shape is not None and prod(node.shape) == tensor.numel()
        target = torch.ops.aten.alias.default if is_whole else torch.ops.aten.slice.Tensor
        alias = self._append("alias" if is_whole else "slice", (node,), {}, target)
        alias.describe(tensor)
        self.know(tensor, alias)
        return alias

    def _join(self, old: Node | Callable[[], Node], new: Node) -> Node:
        """Make the node of a tensor after a write into another tensor in its memory."""
        old = old if isinstance(old, Node) else old()
        if prod(old.shape or ()) == prod(new.shape or ()):
            joined = self._append("view", (new, old.shape), {}, torch.ops.aten.view.default)
        else:
            joined = self._append("slice_scatter", (old, new), {}, torch.ops.aten.slice_scatter.default)
        joined.shape, joined.floating = old.shape, old.floating
        return joined


@cache
def _traits(func: Any) -> tuple[str, bool]:
    """Return the name of an operation, and whether values decide the sizes of its result."""
    if not isinstance(func, torch._ops.OpOverload):
        return getattr(func, "__name__", str(func)).rstrip("_"), False
    return func._schema.name.partition("::")[2], torch.Tag.dynamic_output_shape in func.tags


def _nodes(value: Any) -> Iterator[Node]:
    for part in value:
        if isinstance(part, Node):
            yield part
        elif isinstance(part, tuple):
            yield from _nodes(part)
