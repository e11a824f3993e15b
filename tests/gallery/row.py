"""A row of the gallery: a small network, its example inputs, its stated map, and a healthy training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import normless as nl

Stated = str | tuple[str, Sequence[Any]]
Loss = Callable[[Any], Tensor]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

ROWS: dict[str, Row] = {}
SIZES = ("small", "slow", "zoo")


def squares(output: Any) -> Tensor:
    """The mean square of the distance of every output from 0.3."""
    return torch.stack([(part - 0.3).square().mean() for part in floating(output)]).sum()


def entropy(output: Any) -> Tensor:
    """The cross-entropy of logits along the last axis; the right classes are counted through."""
    logits = floating(output)[0].flatten(0, -2)
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device) % logits.shape[1])


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW at the rate of small transformers."""
    return torch.optim.AdamW(parameters, lr=3e-3)


@dataclass(frozen=True)
class Row:
    """A network of the gallery.

    Attributes:
        name: the name in tests and of the golden file.
        kind: the file of the gallery.
        build: builds the network; random weights depend on the random state.
        inputs: makes the example inputs: an expression of torch's names, or a function.
        odd: what is unusual about the network.
        blocks: the residual blocks in execution order as a person read them from the code, or None if they are only
            counted. A block is `PREFIX: LAYER LAYER + LAYER | LAYER`: the weight layers of each branch, then those
            on its skip path, all with one prefix; with blocks inside its branch it is a pair with their list.
        count: the number of outermost blocks, of blocks inside others, and of outermost blocks without an identity
            skip path, where blocks are only counted; None leaves a number open.
        stem: the weight layers before the first block.
        roles: the norms by role, as patterns of their names, `last: *.norm2; other: norm`; all of them.
        heads, directions, unresolved: what the map lists there; for `unresolved`, a part of each reason.
        refused: a part of the reason for which a scheme refuses the network, by the scheme's name.
        affine: the number of batch norms that no layer can take when they are folded; None leaves it open.
        loss, optimizer: those of a healthy training on the example inputs.
        rounding: the relative error of outputs beyond that of the type, where forward code rounds.
        batched: whether the first axis of each input is the batch.
        needs: the packages beyond torch.
        size: `small` rows run in `make test`, `slow` ones in `make test-slow`, `zoo` ones in `make zoo`.
    """

    name: str
    kind: str
    build: Callable[[], nn.Module]
    inputs: str | Callable[[], Any]
    odd: str = ""
    blocks: tuple[Stated, ...] | None = None
    count: tuple[int | None, int | None, int | None] | None = None
    stem: tuple[str, ...] | None = None
    roles: str | None = None
    heads: tuple[str, ...] | None = None
    directions: tuple[str, ...] | None = None
    unresolved: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    affine: int | None = None
    loss: Loss = squares
    optimizer: Optimizer = sgd
    rounding: float = 0.0
    batched: bool = True
    needs: tuple[str, ...] = ()
    size: str = "small"

    def network(self, seed: int = 0) -> nn.Module:
        """The network in training mode, always of the same weights."""
        for package in self.needs:
            pytest.importorskip(package)
        torch.manual_seed(seed)
        return self.build().train()

    def example(self, seed: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example inputs, by position and by name."""
        torch.manual_seed(seed)
        made = eval(self.inputs, vars(torch).copy()) if isinstance(self.inputs, str) else self.inputs()
        if isinstance(made, dict):
            return (), made
        return (made if isinstance(made, tuple) else (made,)), {}


def each(*blocks: str, count: int = 2, first: int = 0) -> list[str]:
    """The statements for each number, in turn."""
    return [block.format(number) for number in range(first, first + count) for block in blocks]


def row(
    inputs: str | Callable[[], Any],
    blocks: Sequence[Stated] | None = None,
    *arguments: Any,
    name: str = "",
    stem: str | None = None,
    heads: str | None = None,
    directions: str | None = None,
    **stated: Any,
) -> Callable[[Any], Any]:
    """Enter a class or a function into the gallery; its network is built with the arguments."""

    def enter(build: Any) -> Any:
        kind = build.__module__.rpartition(".")[2]
        listed = {"stem": stem, "heads": heads, "directions": directions}
        paths = {key: tuple(text.split()) for key, text in listed.items() if text is not None}
        add(
            Row(
                name or build.__name__,
                kind,
                (lambda: build(*arguments)) if arguments else build,
                inputs,
                blocks=None if blocks is None else tuple(blocks),
                **paths,
                **stated,
            )
        )
        return build

    return enter


def add(made: Row) -> None:
    """Enter a row into the gallery."""
    assert made.name not in ROWS, f"two rows have the name {made.name}"
    assert made.size in SIZES
    assert made.blocks is None or made.count is None, f"{made.name} states its blocks twice"
    ROWS[made.name] = made


def floating(output: Any) -> list[Tensor]:
    """The tensors of floating-point numbers in an output, data classes and model outputs included."""
    if isinstance(output, Mapping):
        output = [*output.values()]
    elif not isinstance(output, (Tensor, list, tuple)) and hasattr(output, "__dict__"):
        output = [*vars(output).values()]
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.is_floating_point()]


def read(stated: Stated) -> dict[str, Any]:
    """A stated block as plain data: its branches, its skip path, the blocks inside."""
    text, inner = (stated, ()) if isinstance(stated, str) else stated
    prefix, _, layers = text.rpartition(": ")
    branches, _, skip = layers.partition("|")
    whole = [[_path(prefix, layer) for layer in part.split()] for part in (*branches.split("+"), skip)]
    return {"branches": whole[:-1], "skip": whole[-1], "inner": [read(block) for block in inner]}


def _path(prefix: str, layer: str) -> str:
    return f"{prefix}{layer}" if not prefix or layer.startswith(":") else f"{prefix}.{layer}"


def plain(block: nl.ResidualBlock) -> dict[str, Any]:
    """A block of a map as `read` gives a stated one."""
    branches = [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches]
    return {"branches": branches, "skip": list(block.skip), "inner": [plain(inner) for inner in block.inner]}


def differences(stated: Row, found: nl.ResidualMap) -> list[str]:
    """A sentence for everything in which a map is not as stated."""
    wrong = []
    if stated.blocks is not None:
        expected, mapped = [read(block) for block in stated.blocks], [plain(block) for block in found.blocks]
        wrong += [f"stated, not mapped: {block}" for block in expected if block not in mapped]
        wrong += [f"mapped, not stated: {block}" for block in mapped if block not in expected]
        if not wrong and expected != mapped:
            wrong.append("the blocks come in another order")
    if stated.count is not None:
        inner, fitted = len([*found.walk()]) - found.depth, sum(not block.identity_skip for block in found.blocks)
        for what, expected_number, number in zip(
            ("blocks", "inner blocks", "blocks without an identity skip path"),
            stated.count,
            (found.depth, inner, fitted),
            strict=True,
        ):
            if expected_number not in (None, number):
                wrong.append(f"{number} {what}, stated {expected_number}")
    for what, paths, mapped_paths in (
        ("stem", stated.stem, found.stem),
        ("heads", stated.heads, [head.path for head in found.heads]),
        ("directions", stated.directions, [*found.directions]),
    ):
        if paths is not None and {*paths} != {*mapped_paths}:
            wrong.append(f"{what}: {sorted(mapped_paths)}, stated {sorted(paths)}")
    wrong += _wrong_roles(stated.roles, found.norms) if stated.roles is not None else []
    reasons = [str(part) for part in found.unresolved]
    wrong += [f"unresolved: {reason}" for reason in reasons if not any(part in reason for part in stated.unresolved)]
    wrong += [f"resolved: {part}" for part in stated.unresolved if not any(part in reason for reason in reasons)]
    return wrong


def _wrong_roles(stated: str, found: Mapping[str, str]) -> list[str]:
    patterns = [
        (pattern, role.strip())
        for role, colon, names in (part.partition(":") for part in stated.split(";"))
        if colon
        for pattern in names.split()
    ]
    wrong = [
        f"no norm matches {pattern}"
        for pattern, _ in patterns
        if not any(fnmatchcase(path, pattern) for path in found)
    ]
    for path, role in found.items():
        roles = [given for pattern, given in patterns if fnmatchcase(path, pattern)]
        if role not in roles[:1]:
            wrong.append(f"the norm {path} has the role {role}, stated {roles[:1]}")
    return wrong
